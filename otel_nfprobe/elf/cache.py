# SPDX-License-Identifier: Apache-2.0
"""On-disk cache of analysis results, keyed by build ID.

    $XDG_CACHE_HOME/nfprobe/BUILD_ID-KIND:   magic | SHA-256 of what follows | key line | zlib of the value

Cached values decide what is done to a target, so the folder must be writable by this user only, and an entry that is
damaged, or written by another version, counts as absent. Nothing here raises: without a cache the work is redone.
Values are bytes; never store pickles.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import zlib
from functools import cache as once
from pathlib import Path

import otel_nfprobe
from otel_nfprobe import _core
from otel_nfprobe.base.lateregex import compile_late

MAGIC = b"nfprobe\x01"
FORMAT = 1  # increment when the meaning of any kind of value changes
ENTRIES_MAX = 2048
TOTAL_BYTES_MAX = 1 << 30
LARGE_ENTRY_BYTES = 1 << 20  # the total is checked only after storing such an entry
ENTRY_BYTES_MAX = 64 << 20
VALUE_BYTES_MAX = 512 << 20
_KIND = compile_late(r"[a-z][a-z0-9-]{0,30}")
_BUILD_ID = compile_late(r"[0-9a-f]{16,128}")


def load(build_id: str, kind: str, key: str = "") -> bytes | None:
    """Returns the value stored under the same build ID, kind and key, or None.

    Args:
        build_id: in hex; a module without one is not cached.
        kind: of value: a short word.
        key: further inputs of the value.
    """
    path = _path_of(build_id, kind)
    if path is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not _is_private(status) or status.st_size > ENTRY_BYTES_MAX:
                return None
            content = file.read(ENTRY_BYTES_MAX)
    except OSError:
        return None
    return _unpack(content, _key_line(kind, key))


def store(build_id: str, kind: str, value: bytes, key: str = "") -> None:
    """Stores a value, replacing an existing entry atomically; does nothing if it cannot be stored."""
    path = _path_of(build_id, kind)
    if path is None or len(value) > VALUE_BYTES_MAX:
        return
    content = _pack(value, _key_line(kind, key))
    if len(content) > ENTRY_BYTES_MAX:
        return
    with contextlib.suppress(OSError):
        _write(path, content)
        _prune(path.parent, len(content))


def _pack(value: bytes, key_line: bytes) -> bytes:
    body = key_line + zlib.compress(value, 1)
    return MAGIC + hashlib.sha256(body).digest() + body


def _unpack(content: bytes, key_line: bytes) -> bytes | None:
    start = len(MAGIC) + hashlib.sha256().digest_size
    body = content[start:]
    if not content.startswith(MAGIC) or hashlib.sha256(body).digest() != content[len(MAGIC) : start]:
        return None
    if not body.startswith(key_line):
        return None
    decoder = zlib.decompressobj()
    try:
        value = decoder.decompress(body[len(key_line) :], VALUE_BYTES_MAX)
    except zlib.error:
        return None
    return value if decoder.eof else None


def _key_line(kind: str, key: str) -> bytes:
    return f"{_code_identity()} {FORMAT} {kind} {hashlib.sha256(key.encode()).hexdigest()}\n".encode()


@once
def _code_identity() -> str:
    """Changes with every version, and with every edit of a development tree."""
    digest = hashlib.sha256(otel_nfprobe.__version__.encode())
    for file in [*sorted(Path(otel_nfprobe.__file__).parent.rglob("*.py")), Path(_core.__file__)]:
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def _path_of(build_id: str, kind: str) -> Path | None:
    folder = _folder()
    if folder is None or not _BUILD_ID.fullmatch(build_id) or not _KIND.fullmatch(kind):
        return None
    return folder / f"{build_id}-{kind}"


def _folder() -> Path | None:
    return _prepare(os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", ""))


@once
def _prepare(cache_home: str, home: str) -> Path | None:
    """Returns the folder, created if missing; None if others can write there, or it cannot be created."""
    if os.path.isabs(cache_home):
        parent = Path(cache_home)
    elif os.path.isabs(home):
        parent = Path(home) / ".cache"
    else:
        return None
    folder = parent / "nfprobe"
    try:
        if parent.parent.is_dir() and not parent.exists():
            parent.mkdir(mode=0o700, exist_ok=True)
        # As root with another user's home directory, the folder is neither written nor trusted.
        if parent.stat().st_uid != os.geteuid():
            return None
        folder.mkdir(mode=0o700, exist_ok=True)
        status = os.lstat(folder)
    except OSError:
        return None
    # Others may list it: it may have been created for another purpose, and only the owner can read entries.
    return folder if stat.S_ISDIR(status.st_mode) and _is_own(status, stat.S_IWGRP | stat.S_IWOTH) else None


def _is_private(status: os.stat_result) -> bool:
    return _is_own(status, stat.S_IRWXG | stat.S_IRWXO)


def _is_own(status: os.stat_result, denied: int) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & denied


def _write(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _prune(folder: Path, added_bytes: int) -> None:
    """Removes the oldest entries when there are too many, or their total size is too large."""
    names = os.listdir(folder)
    if len(names) <= ENTRIES_MAX and added_bytes < LARGE_ENTRY_BYTES:
        return
    entries = []
    for name in names:
        with contextlib.suppress(OSError):
            status = os.stat(folder / name)
            entries.append((status.st_mtime_ns, name, status.st_size))
    kept_bytes = 0
    for position, (_, name, size) in enumerate(sorted(entries, reverse=True)):
        kept_bytes += size
        if position >= ENTRIES_MAX or kept_bytes > TOTAL_BYTES_MAX:
            with contextlib.suppress(OSError):
                os.unlink(folder / name)
