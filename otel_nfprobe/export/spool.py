# SPDX-License-Identifier: Apache-2.0
"""Spool: stores requests on disk from submission until they are delivered, bounded in bytes and age.

Each session writes into its own directory (spool_file.py), so a `kill -9` loses nothing already written. Requests that
ended sessions left for the same endpoint are sent by the next session, oldest first, or by `nfprobe export`. Used from
the threads of otlp.py only.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.export.endpoint import Endpoint
from otel_nfprobe.export.spool_file import NO_ROOM, RequestLocation, SpoolSession, is_locked

MAX_BYTES = 1 << 30
MAX_AGE_S = 24 * 3600.0
_LOOK_S = 2.0  # how often the sizes of other sessions' files are read


@dataclass(frozen=True)
class SpoolSettings:
    """Directory and limits of the spool: bytes of all sessions together, seconds since a request was submitted."""

    directory: Path
    max_bytes: int = MAX_BYTES
    max_age_s: float = MAX_AGE_S


class SpoolFullError(OSError):
    """The spool has reached its size limit."""


def find_directory(environment: Mapping[str, str]) -> Path:
    """Returns the default spool: in the user's state directory."""
    state = environment.get("XDG_STATE_HOME", "")
    base = Path(state) if os.path.isabs(state) else Path(os.path.expanduser("~")) / ".local" / "state"
    return base / "nfprobe" / "spool"


def describe_endpoint(endpoint: Endpoint) -> str:
    """Returns the key by which a session's spool is matched; without headers, which may be secret."""
    return f"{'http/protobuf' if endpoint.path else 'grpc'} {endpoint.url}"


class Spool:
    """The spool as seen by one exporter.

    Args:
        settings: directory and limits.
        endpoint: `describe_endpoint`; empty: takes over spans for every endpoint.
        write: whether spans of this session will be written.

    Attributes:
        own: this session's part; None without `write`, or if the disk is full.
        lost_spans: of ended sessions: in their monitors' memory when those were killed.
        damaged_spans: of ended sessions: unreadable.
        old_spans: of ended sessions for other endpoints: older than the limit.
        sentences: messages for the user about the recovery.

    Raises:
        UsageError: the directory cannot be used.
    """

    def __init__(self, settings: SpoolSettings, endpoint: str = "", write: bool = True) -> None:
        self.settings = settings
        self.lost_spans = self.damaged_spans = self.old_spans = 0
        self.sentences: list[str] = []
        self._endpoint = endpoint
        self._adopted: dict[SpoolSession, int] = {}  # requests still to be sent
        self._other_bytes = 0
        self._look_at = 0.0
        try:
            _make_private(settings.directory)
            name = f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}"
            self.own = SpoolSession.create(settings.directory / name, endpoint) if write else None
        except OSError as error:
            if error.errno in NO_ROOM:
                # Existing requests can still be sent, which makes room.
                self.own = None
                self.sentences.append(f"The spool {str(settings.directory)!r} has no room: spans wait in memory only.")
                return
            directory = settings.directory
            sentence = f"The spool {str(directory)!r} cannot be used: {error.strerror}."
            raise UsageError(sentence, f"ls -ld {directory}") from None

    def append(self, data: bytes, spans: int) -> RequestLocation:
        """Writes a request of this session. Raises SpoolFullError, or OSError if the disk fails."""
        assert self.own is not None
        now = time.monotonic()
        if now >= self._look_at:
            self._other_bytes = self._count_bytes(self.own.directory)
            self._look_at = now + _LOOK_S
        if self._other_bytes + self.own.size_bytes + self.own.find_growth(data) > self.settings.max_bytes:
            raise SpoolFullError
        return self.own.append(data, spans)

    def recover(self) -> Iterator[RequestLocation]:
        """Yields requests of ended sessions, oldest session first."""
        for directory in sorted(self.settings.directory.glob("[0-9]*-*")):
            with suppress(OSError):
                yield from self._recover(directory)

    def finish(self, place: RequestLocation) -> None:
        """Marks a request as acknowledged or dropped."""
        place.spool.finish(place)
        if place.spool in self._adopted:
            self._adopted[place.spool] -= 1
            if not self._adopted[place.spool]:
                self._release(place.spool)

    def is_old(self, place: RequestLocation) -> bool:
        """Returns whether a request is older than the limit."""
        return time.time() - place.unix_ns / 1e9 > self.settings.max_age_s

    def close(self, is_empty: bool) -> None:
        """Closes all files. `is_empty`: nothing of this session is left to send."""
        for session in list(self._adopted):
            self._release(session)
        if self.own is not None:
            self.own.close(keep=not is_empty)

    def _release(self, session: SpoolSession) -> None:
        waiting = self._adopted.pop(session)
        session.close(keep=waiting > 0)

    def _recover(self, directory: Path) -> Iterator[RequestLocation]:
        if self.own is not None and directory == self.own.directory:
            return
        session = SpoolSession.adopt(directory)
        if session is None:
            self._sweep(directory)
            return
        if self._endpoint and session.endpoint != self._endpoint:
            self._leave(session)
            return
        places = list(session.recover())
        lost, damaged = session.count_lost(), session.count_damaged(sum(place.spans for place in places))
        self.lost_spans += lost
        self.damaged_spans += damaged
        for name in session.damaged:
            aside = f"{directory}/{name.replace('.segment', '.damaged')}"
            self.sentences.append(
                f"{damaged:,} spooled spans are damaged and cannot be sent; they are kept in {aside}."
            )
        self._adopted[session] = len(places)
        if not places:
            self._release(session)
            self._sweep(directory)
        yield from places

    # For another endpoint: it stays for a session with that endpoint, until it is too old.
    def _leave(self, session: SpoolSession) -> None:
        if time.time() - session.directory.stat().st_mtime < self.settings.max_age_s:
            session.close()
            return
        places = list(session.recover())
        if not all(self.is_old(place) for place in places):
            session.close()
            return
        spans = sum(place.spans for place in places) + session.count_lost()
        self.old_spans += spans
        if spans:
            self.sentences.append(f"{spans:,} spooled spans for {session.endpoint} were too old and have been deleted.")
        session.close(keep=False)

    # Not a spool, or damaged segments only: deleted after some time.
    def _sweep(self, directory: Path) -> None:
        facts = directory.lstat()
        ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
        if ours and time.time() - facts.st_mtime > self.settings.max_age_s and not is_locked(directory):
            shutil.rmtree(directory, ignore_errors=True)

    def _count_bytes(self, without: Path) -> int:
        total = 0
        for kind in ("segment", "damaged"):
            for path in self.settings.directory.glob(f"*/*.{kind}"):
                with suppress(OSError):
                    total += path.lstat().st_size if path.parent != without else 0
        return total


# An existing directory is left unchanged (the user may have named /tmp), but what is created in it is private. No other
# user may be able to replace it.
def _make_private(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = directory.stat()
    is_open = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not facts.st_mode & stat.S_ISVTX
    if facts.st_uid not in (0, os.geteuid()) or is_open:
        raise PermissionError(errno.EPERM, "others can write there")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
