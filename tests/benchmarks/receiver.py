# SPDX-License-Identifier: Apache-2.0
"""For benchmarks: a receiver of spans in a process of its own, which acknowledges everything and throws it away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc


@contextmanager
def receiver() -> Iterator[int]:
    """Its port on loopback. It runs on the CPUs of this process."""
    command = [sys.executable, "-m", "tests.benchmarks.receiver"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


def serve() -> None:
    """Prints a port and acknowledges everything that is sent there, until its input ends."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _: object) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda *_: b"")

    options = [("grpc.max_receive_message_length", 1 << 26)]
    server = grpc.server(ThreadPoolExecutor(2), [Handler()], options=options)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()


if __name__ == "__main__":
    serve()
