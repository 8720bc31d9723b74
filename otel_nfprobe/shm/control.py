# SPDX-License-Identifier: Apache-2.0
"""Control: requests to a running session, from `nfprobe counters`.

A monitor listens on an abstract Unix socket named after the session's memory, so that whoever can see the session in
its target finds it, in any PID namespace. A request is one line of JSON, and so is its answer. Only root and the
monitor's own user are answered. A separate thread does the communication; the draining thread applies changes to the
session (`step`), so that draining never waits for a client.
"""

from __future__ import annotations

import io
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.timedreader import TimedReader

REQUEST_BYTES_MAX = 1 << 16
CLIENT_PATIENCE_S = 5.0  # for a connected client to send its request
CLOSE_PATIENCE_S = 1.0  # for the communication thread to release the socket's name
PAUSE_S = 0.1
SESSION_PATIENCE_S = 60.0  # for the session to apply a change
_PEER = struct.Struct("iII")  # pid, uid, gid

Request = dict[str, Any]
Answer = dict[str, Any]


class AnswerError(Exception):
    """The session refuses the request.

    Attributes:
        answer: its answer: `error`, `next`, `status`.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(str(answer.get("error", "")))
        self.answer = answer


def socket_name(inode: int) -> bytes:
    """Returns the socket name of a session, by the inode of its memory."""
    return b"\0otel-nfprobe/%x" % inode


class Control:
    """Listens from creation until `close`.

    Args:
        inode: of the session's memory.
        prepare: checks a request, in the communication thread; its result is passed to `act`.
        act: performs it, in the thread that calls `step`.

    Both raise NfprobeError with the message for the client.
    """

    def __init__(self, inode: int, prepare: Callable[[Request], Any], act: Callable[[Any], Answer]) -> None:
        self._prepare, self._act = prepare, act
        self._asked: SimpleQueue[tuple[Any, SimpleQueue[Answer]]] = SimpleQueue()
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(socket_name(inode))
            self._socket.listen(4)
        except OSError:  # the session runs without control
            self._socket.close()
            self._socket = None
            return
        self._thread = threading.Thread(target=self._serve, args=(self._socket,), name="nfprobe-control", daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Performs requests received since the last call."""
        with suppress(Empty):
            while True:
                asked, answers = self._asked.get_nowait()
                answers.put(_answer(self._act, asked))

    def close(self) -> None:
        """Stops listening; further requests are refused.

        The kernel keeps the socket, and its name, while a thread is in accept: waits for that thread.
        """
        self._act = _refuse
        listening, self._socket = self._socket, None
        if listening is not None:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        self.step()
        if listening is not None:
            self._thread.join(CLOSE_PATIENCE_S)

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                if self._socket is None:
                    return
                time.sleep(PAUSE_S)  # no free descriptor at the moment
                continue
            with client, suppress(OSError, ValueError, RecursionError):
                answer = json.dumps(self._talk(client)).encode() + b"\n"
                client.settimeout(CLIENT_PATIENCE_S)
                client.sendall(answer)

    def _talk(self, client: socket.socket) -> Answer:
        if _peer(client)[1] not in (0, os.geteuid()):
            return {"error": "This session belongs to another user.", "next": "sudo nfprobe counters PID", "status": 1}
        request = json.loads(_read_line(client, CLIENT_PATIENCE_S))
        if not isinstance(request, dict):
            raise ValueError
        answers: SimpleQueue[Answer] = SimpleQueue()

        def hand_over(request: Request) -> Answer:
            self._asked.put((self._prepare(request), answers))
            if self._socket is None:
                self.step()
            with suppress(Empty):
                return answers.get(timeout=SESSION_PATIENCE_S)
            raise NfprobeError("The session is busy and did not perform the request.", "nfprobe status")

        return _answer(hand_over, request)


def _refuse(_asked: Any) -> Answer:
    raise NfprobeError("The session is ending.", "nfprobe status")


def _answer(act: Callable[[Any], Answer], asked: Any) -> Answer:
    try:
        return act(asked)
    except NfprobeError as error:
        return {"error": error.sentence, "next": error.next_command, "status": error.exit_status}
    except OSError as error:
        return {"error": f"{error.strerror or error}.", "next": "nfprobe doctor", "status": 1}


def ask(inode: int, request: Request) -> Answer:
    """Sends a request to the session with this memory.

    Raises:
        AnswerError: it refuses.
        OSError: nobody listens there, or nobody answers.
    """
    patience_s = SESSION_PATIENCE_S + CLIENT_PATIENCE_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(patience_s)
        client.connect(socket_name(inode))
        if _peer(client)[1] not in (0, os.geteuid()) and os.geteuid() != 0:
            raise PermissionError(1, "another user listens there")
        client.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(_read_line(client, patience_s) or b"{}")
    if not isinstance(answer, dict) or "error" in answer or not answer:
        raise AnswerError(answer if isinstance(answer, dict) else {})
    return answer


def _read_line(connection: socket.socket, patience_s: float) -> bytes:
    """Reads a line, or what arrived before the connection ended. Raises OSError on timeout."""
    raw = connection.makefile("rb", buffering=0)
    with io.BufferedReader(TimedReader(connection, raw, patience_s)) as reader:
        return reader.readline(REQUEST_BYTES_MAX)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Returns process and user of the peer."""
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid
