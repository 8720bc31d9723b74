# SPDX-License-Identifier: Apache-2.0
"""OTLP: sends encoded requests in a separate thread, from a queue of bounded bytes and, with a spool, from disk.

`submit` never blocks the drain, neither for the receiver nor for the disk: when the queue is full the request is
dropped and its spans are counted. Every submitted span ends in exactly one counter. With a spool, a second thread
writes each request to disk before it is sent.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import dataclass

from otel_nfprobe.export.delivery import Outcome, OutcomeKind, Transport, make_readable
from otel_nfprobe.export.endpoint import DEFAULT_TIMEOUT_S, Endpoint
from otel_nfprobe.export.export_counters import ExportCounters
from otel_nfprobe.export.span import EncodedRequest
from otel_nfprobe.export.spool import Spool, SpoolFullError
from otel_nfprobe.export.spool_file import NO_ROOM, DamagedError, RequestLocation

# ---- transports -----------------------------------------------------------------------------------------------------
# Transport: chosen by an endpoint's protocol. gRPC and HTTP are loaded on demand.


def open_transport(endpoint: Endpoint) -> Transport:
    """Returns a transport to the endpoint. Does not connect yet."""
    if endpoint.path:
        from otel_nfprobe.export.otlp_http import HttpTransport

        return HttpTransport(endpoint)
    from otel_nfprobe.export.otlp_grpc import GrpcTransport

    return GrpcTransport(endpoint)


# ---- the exporter ---------------------------------------------------------------------------------------------------


QUEUE_BYTES = 64 << 20
RETRY_TOTAL_S = 60.0
DROPPED_QUEUE_FULL = "queue full"
DROPPED_UNREACHABLE = "receiver unreachable"
DROPPED_REJECTED = "rejected by receiver"
DROPPED_SPOOL_FULL = "spool full"
DROPPED_DISK_FULL = "disk full"
DROPPED_DISK_ERROR = "disk error"
DROPPED_TOO_OLD = "too old in spool"
DROPPED_DAMAGED = "damaged in spool"
DROPPED_SENDER_ENDED = "sender has failed"
DROPPED_KILLED = "monitor was killed"  # in memory only, of an earlier session

_BACKOFF_FIRST_S = 0.25
_BACKOFF_MAX_S = 5.0
_JITTER = 0.2
_SENTENCES_MAX = 8
_KEPT_SHARE = 2  # 1/2 of the queue's bytes stay in memory although they are on disk, to be sent without reading
_SHORT_CLOSE_S = 1.0  # for an unreachable receiver, when everything is on disk
_ABANDON_S = 2.0  # a thread still running then is blocked by the disk or the network, and is abandoned
_FLUSH_S = 10.0  # to finish writing to disk
_LOOK_S = 0.2


@dataclass(eq=False)
class _Waiting:
    # A request in the queue. `settled`: it is on disk, or will never be.
    spans: int
    size_bytes: int
    data: bytes | None
    settled: bool
    place: RequestLocation | None = None
    reason: str = DROPPED_UNREACHABLE  # if it is never delivered
    is_recovered: bool = False


class Exporter:
    """Sends requests in the order of their submission, and retries as specified by OTLP.

    Args:
        where: destination and protocol (`find_endpoint`), or a transport.
        queue_bytes: limit of encoded bytes in memory, including the request being sent.
        retry_total_s: while a receiver is unreachable for longer, each request that is not on disk is tried only once.
        spool: where requests wait on disk; earlier requests in it are sent first.
    """

    def __init__(
        self,
        where: Endpoint | Transport,
        queue_bytes: int = QUEUE_BYTES,
        retry_total_s: float = RETRY_TOTAL_S,
        spool: Spool | None = None,
    ) -> None:
        self._timeout_s = where.timeout_s if isinstance(where, Endpoint) else DEFAULT_TIMEOUT_S
        self._transport: Transport = open_transport(where) if isinstance(where, Endpoint) else where
        self._queue_bytes = queue_bytes
        self._retry_total_s = retry_total_s
        self._spool = spool
        self._ledger = spool.own if spool is not None else None
        self._failing_since: float | None = None
        self._queue: deque[_Waiting] = deque()
        self._unwritten: deque[_Waiting] = deque()
        self._resident_bytes = self._safe_bytes = 0  # in memory; of these, also on disk
        self._spool_error = ""
        self._changed = threading.Condition()
        self._counters = ExportCounters(recovered=ExportCounters() if spool is not None else None)
        self._closing = self._abandoned = self._failed = False
        self._recovering = spool is not None
        self._give_up_at = float("inf")
        self._threads = [threading.Thread(target=self._run, name="nfprobe-otlp", daemon=True)]
        if self._ledger is not None:
            self._threads.append(threading.Thread(target=self._write, name="nfprobe-spool", daemon=True))
        for thread in self._threads:
            thread.start()

    def submit(self, request: EncodedRequest, wait: bool = False) -> bool:
        """Queues a request. Returns whether it was queued; otherwise its spans are counted as dropped.

        Args:
            request: what `SpanEncoder.encode` yields.
            wait: block until there is room, as the export of a recording does, instead of dropping.
        """
        size = len(request.data)
        with self._changed:
            while wait and not self._closing and not self._failed and self._is_full(size):
                self._changed.wait()
            if self._ledger is not None:
                self._ledger.count_submitted(request.spans)
            entry = _Waiting(request.spans, size, request.data, settled=self._ledger is None)
            if self._closing or self._is_full(size):
                reason = DROPPED_SENDER_ENDED if self._failed else self._spool_error or DROPPED_QUEUE_FULL
                self._count_dropped(entry, reason)
                return False
            self._queue.append(entry)
            if self._ledger is not None:
                self._unwritten.append(entry)
            self._resident_bytes += size
            self._changed.notify_all()
        return True

    def read_room_bytes(self) -> int:
        """Returns how many encoded bytes `submit` would accept now."""
        with self._changed:
            return max(0, self._queue_bytes - self._resident_bytes)

    def read_counters(self) -> ExportCounters:
        """Returns the current counters."""
        with self._changed:
            self._counters.is_failing = self._failing_since is not None
            return self._counters.copy()

    def wait(self, patience_s: float = float("inf"), timeout_s: float = float("inf")) -> bool:
        """Waits until everything is sent. Returns whether it was.

        Args:
            patience_s: gives up when the receiver is unreachable for this time.
            timeout_s: gives up after this time.
        """
        until = time.monotonic() + timeout_s
        with self._changed:
            while self._recovering or self._queue:
                now = time.monotonic()
                since = now if self._failing_since is None else self._failing_since
                if self._failed or now >= until or now - since >= patience_s:
                    return False
                self._changed.wait(_LOOK_S)
            return True

    def close(self, timeout_s: float = 10.0) -> ExportCounters:
        """Sends the queue for at most timeout_s; the rest stays in the spool or is counted as dropped.

        Returns the final counters.
        """
        with self._changed:
            self._closing = True
            is_safe = self._spool is not None and not self._spool_error
            if is_safe and self._failing_since is not None:
                timeout_s = min(timeout_s, _SHORT_CLOSE_S)
            self._give_up_at = min(self._give_up_at, time.monotonic() + timeout_s)
            self._changed.notify_all()
        self._threads[0].join(timeout_s)
        if self._threads[0].is_alive():
            self._transport.cancel()
        for thread, patience_s in zip(self._threads, (_ABANDON_S, _FLUSH_S), strict=False):
            thread.join(patience_s)
        with self._changed:
            self._abandoned = True
            self._count_rest()
        self._transport.close()
        if self._spool is not None:
            self._spool.close(is_empty=not self._counters.spooled_spans)
        return self.read_counters()

    # Spans neither delivered nor still to be delivered by this exporter.
    def _count_rest(self) -> None:
        for entry in self._queue:
            if entry.place is None:
                self._count_dropped(entry, DROPPED_SENDER_ENDED if self._failed else entry.reason)
        self._queue.clear()
        self._unwritten.clear()
        self._ledger = None
        self._resident_bytes = 0

    def _is_full(self, size: int) -> bool:
        # An empty queue accepts any request; otherwise one larger than the queue could never be sent.
        return bool(self._resident_bytes) and self._resident_bytes + size > self._queue_bytes

    def _counts_of(self, entry: _Waiting) -> ExportCounters:
        recovered = self._counters.recovered
        return recovered if entry.is_recovered and recovered is not None else self._counters

    def _count_dropped(self, entry: _Waiting, reason: str) -> None:
        self._counts_of(entry).dropped_spans[reason] += entry.spans
        if entry.place is None and self._ledger is not None:
            self._ledger.count_unwritten(entry.spans)

    def _tell(self, sentence: str) -> None:
        if sentence not in self._counters.sentences and len(self._counters.sentences) < _SENTENCES_MAX:
            self._counters.sentences.append(sentence)

    # The thread that writes requests into the spool.
    def _write(self) -> None:
        assert self._spool is not None
        while True:
            with self._changed:
                while not self._unwritten and not self._closing:
                    self._changed.wait()
                if not self._unwritten:
                    return
                entry = self._unwritten.popleft()
            place, error = self._append(self._spool, entry)
            with self._changed:
                if self._abandoned:
                    return
                entry.place, entry.settled, self._spool_error = place, True, error
                entry.reason = error or entry.reason
                if place is not None:
                    self._counters.spooled_spans += entry.spans
                    self._safe_bytes += entry.size_bytes
                    if self._safe_bytes > self._queue_bytes // _KEPT_SHARE:
                        self._evict(entry)
                self._changed.notify_all()

    def _append(self, spool: Spool, entry: _Waiting) -> tuple[RequestLocation | None, str]:
        assert entry.data is not None
        try:
            return spool.append(entry.data, entry.spans), ""
        except SpoolFullError:
            return None, DROPPED_SPOOL_FULL
        except OSError as error:
            return None, DROPPED_DISK_FULL if error.errno in NO_ROOM else DROPPED_DISK_ERROR
        except Exception as error:  # this thread must continue: the sender waits for it
            self._tell(f"The spool cannot be written: {_describe(error)}.")
            return None, DROPPED_DISK_ERROR

    def _evict(self, entry: _Waiting) -> None:
        if entry.data is not None:
            entry.data = None
            self._resident_bytes -= entry.size_bytes
            self._safe_bytes -= entry.size_bytes if entry.place is not None else 0

    # The thread that sends.
    def _run(self) -> None:
        try:
            self._recover()
            self._send_all()
        except BaseException as error:  # otherwise nothing would report that sending has stopped
            with self._changed:
                self._failed = True
                self._tell(f"The sender has failed and sends no more spans: {_describe(error)}.")
                self._changed.notify_all()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                while not (self._queue and self._queue[0].settled) and not self._is_over():
                    self._changed.wait(max(0.0, self._give_up_at - time.monotonic()) if self._closing else None)
                if self._is_over():
                    return
                entry = self._queue[0]
            if not self._send(entry):
                return

    def _is_over(self) -> bool:
        return self._closing and (not self._queue or time.monotonic() >= self._give_up_at)

    # Requests of ended sessions go before those of this one.
    def _recover(self) -> None:
        if self._spool is None:
            return
        found = []
        for place in self._spool.recover():
            found.append(_Waiting(place.spans, place.size_bytes, None, True, place, is_recovered=True))
        recovered = self._counters.recovered
        assert recovered is not None
        with self._changed:
            self._recovering = False
            self._queue.extendleft(reversed(found))
            recovered.spooled_spans = sum(entry.spans for entry in found)
            for reason, spans in (
                (DROPPED_KILLED, self._spool.lost_spans),
                (DROPPED_DAMAGED, self._spool.damaged_spans),
                (DROPPED_TOO_OLD, self._spool.old_spans),
            ):
                if spans:
                    recovered.dropped_spans[reason] += spans
            for sentence in self._spool.sentences:
                self._tell(sentence)
            self._changed.notify_all()

    # Sends one request until it is delivered or counted as dropped; False if `close` ran out of time.
    def _send(self, entry: _Waiting) -> bool:
        data = entry.data
        if data is None:
            assert entry.place is not None
            try:
                data = entry.place.read()
            except DamagedError as error:
                return self._end(entry, DROPPED_DAMAGED, f"{error}.")
        backoff_s = _BACKOFF_FIRST_S
        while (remaining_s := self._give_up_at - time.monotonic()) > 0:
            if entry.place is not None and self._spool is not None and self._spool.is_old(entry.place):
                return self._end(entry, DROPPED_TOO_OLD)
            outcome = self._attempt(data, min(self._timeout_s, remaining_s))
            if outcome.verdict is OutcomeKind.CANCELLED:
                return False
            if outcome.verdict is OutcomeKind.DELIVERED:
                return self._end_delivered(entry, outcome)
            if outcome.verdict is OutcomeKind.REFUSED:
                return self._end(entry, DROPPED_REJECTED, outcome.message)
            if not self._note_failure(outcome.message) and entry.place is None:
                return self._end(entry, entry.reason)
            self._sleep(outcome.retry_after_s or backoff_s * random.uniform(1 - _JITTER, 1 + _JITTER))
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
        return False

    # A response on which a transport fails costs its request, not the thread.
    def _attempt(self, data: bytes, timeout_s: float) -> Outcome:
        try:
            return self._transport.attempt(data, timeout_s)
        except Exception as error:
            return Outcome(OutcomeKind.REFUSED, _describe(error))

    # Returns whether to retry a request that is in memory only.
    def _note_failure(self, error: str) -> bool:
        now = time.monotonic()
        with self._changed:
            if self._failing_since is None:
                self._failing_since = now
            self._counters.last_error = error
            if now - self._failing_since >= self._retry_total_s:
                return False
            self._counters.retries += 1
        return True

    # Waits before the next attempt; a deadline that close sets meanwhile ends the wait early.
    def _sleep(self, wait_s: float) -> None:
        wake_at = time.monotonic() + wait_s
        with self._changed:
            while (until := min(wake_at, self._give_up_at) - time.monotonic()) > 0:
                self._changed.wait(until)

    def _end_delivered(self, entry: _Waiting, outcome: Outcome) -> bool:
        rejected = min(outcome.rejected_spans, entry.spans)
        with self._changed:
            if self._abandoned:
                return False
            self._failing_since = None
            counts = self._counts_of(entry)
            counts.exported_spans += entry.spans - rejected
            counts.exported_requests += 1
            counts.exported_bytes += entry.size_bytes
            if rejected:
                counts.dropped_spans[DROPPED_REJECTED] += rejected
            if outcome.message:
                self._counters.last_error = outcome.message
                self._tell(f"The receiver reports: {outcome.message.rstrip('.')}.")
            if entry.place is None and self._ledger is not None:
                self._ledger.count_unwritten(entry.spans)
            self._leave_queue(entry)
        self._finish(entry)
        return True

    def _end(self, entry: _Waiting, reason: str, error: str = "") -> bool:
        with self._changed:
            if self._abandoned:
                return False
            self._count_dropped(entry, reason)
            if error:
                self._counters.last_error = error
            self._leave_queue(entry)
        self._finish(entry)
        return True

    def _leave_queue(self, entry: _Waiting) -> None:
        self._queue.popleft()
        self._evict(entry)
        if entry.place is not None:
            self._counts_of(entry).spooled_spans -= entry.spans
        self._changed.notify_all()

    def _finish(self, entry: _Waiting) -> None:
        if self._spool is not None and entry.place is not None:
            self._spool.finish(entry.place)


def _describe(error: BaseException) -> str:
    return make_readable(f"{type(error).__name__}: {error}").rstrip(".: ")
