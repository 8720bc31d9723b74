# SPDX-License-Identifier: Apache-2.0
"""A receiver in a process of its own, to be killed and paused, that answers at random and writes down what it did.

    python faulty_receiver.py PORT LOG SEED

Each line of LOG was written before its answer was given: `took FIRST COUNT` or `rejected FIRST COUNT`, of span ids.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class FaultyReceiver:
    """Takes most requests; others it refuses for now, takes in part, or answers with rubbish."""

    def __init__(self, log: str, seed: int) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def export(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """One request."""
        spans = ExportTraceServiceRequest.FromString(data).resource_spans[0].scope_spans[0].spans
        first, count = int.from_bytes(spans[0].span_id, "big"), len(spans)
        with self._lock:
            dice = self._random.random()
            if dice < 0.01:
                context.abort(grpc.StatusCode.UNAVAILABLE, "not just now")
            if dice < 0.03:
                self._throttle(context)
            rejected = self._random.randrange(1, count) if dice < 0.1 and count > 1 else 0
            self._write("took", first, count - rejected)
            if rejected:
                self._write("rejected", first + count - rejected, rejected)
                response = ExportTraceServiceResponse()
                response.partial_success.rejected_spans = rejected
                response.partial_success.error_message = "some were bad"
                return response.SerializeToString()
            return b"\xff\xff rubbish" if dice < 0.2 else b""

    def _throttle(self, context: grpc.ServicerContext) -> None:
        retry_info, detail = RetryInfo(), AnyMessage()
        retry_info.retry_delay.FromMilliseconds(20)
        detail.Pack(retry_info)
        status = Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], details=[detail]).SerializeToString()
        context.set_trailing_metadata((("grpc-status-details-bin", status),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much")

    def _write(self, what: str, first: int, count: int) -> None:
        os.write(self._log, f"{what} {first} {count}\n".encode())


def serve(port: int, export: Callable[[bytes, grpc.ServicerContext], bytes]) -> None:
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    handler = grpc.unary_unary_rpc_method_handler(export)
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": handler})])
    while True:
        try:
            server.add_insecure_port(f"127.0.0.1:{port}")
            break
        except RuntimeError:
            time.sleep(0.02)  # the one that was killed still holds the port
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    serve(int(sys.argv[1]), FaultyReceiver(sys.argv[2], int(sys.argv[3])).export)
