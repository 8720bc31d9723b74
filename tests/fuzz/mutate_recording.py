# SPDX-License-Identifier: Apache-2.0
"""Damaged copies of recordings, from a seed; most have right checksums, so that what is behind these is reached."""

from __future__ import annotations

import random
import struct
import zlib

import zstandard

EXTREMES = (0, 1, 7, 15, 16, 255, 1023, 1024, 65535, 1 << 20, (1 << 24) + 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
END, FRAME = 6, 16


class Parts:
    """The header of a good recording and the unpacked frames, by the drawing in proto/README.md."""

    def __init__(self, data: bytes) -> None:
        first = 20 + struct.unpack_from("<I", data, 12)[0]
        self.start, self.frames, at = data[:first], [], first
        while at < len(data) - 16:
            stored, _, _, codec = struct.unpack_from("<IIII", data, at)
            packed = data[at + FRAME : at + FRAME + stored]
            self.frames.append(zstandard.ZstdDecompressor().decompress(packed) if codec else packed)
            at += FRAME + stored


def seal(frame: bytes, codec: int = 1, unpacked: int | None = None, packed: bytes | None = None) -> bytes:
    """A frame with a right checksum, whatever is in it."""
    if packed is None:
        packed = zstandard.ZstdCompressor().compress(frame) if codec == 1 else frame
    unpacked = len(frame) if unpacked is None else unpacked
    checked = struct.pack("<III", len(packed), unpacked, codec)
    return struct.pack("<IIII", len(packed), unpacked, zlib.crc32(packed, zlib.crc32(checked)), codec) + packed


def bomb(size: int, said: int) -> bytes:
    """A frame of few bytes that unpacks to `size` zeros and says that it has `said`."""
    return seal(b"", unpacked=said, packed=zstandard.ZstdCompressor().compress(bytes(size)))


def mutate(parts: Parts, seed: int) -> bytes:
    """One damaged copy."""
    chance = random.Random(seed)
    frames = [bytearray(frame) for frame in parts.frames]
    for _ in range(chance.choice((1, 1, 2, 5))):
        chance.choice((_words, _words, _blocks, _blocks, _bits, _order))(frames, chance)
    sealed = [seal(bytes(frame), chance.choice((0, 1, 1, 1, 7)) if chance.random() < 0.1 else 1) for frame in frames]
    if chance.random() < 0.1:
        size = chance.choice((1 << 16, 16 << 20, (16 << 20) + 16, 64 << 20))
        sealed.insert(chance.randrange(len(sealed) + 1), bomb(size, chance.choice((size, 16 << 20, 1))))
    places = [len(parts.start)]
    for part in sealed:
        places.append(places[-1] + len(part))
    last = chance.choice(places) if chance.random() < 0.2 else places[-2]
    data = bytearray(parts.start + b"".join(sealed) + struct.pack("<Q8s", last, b"NFPEND\r\n"))
    for _ in range(chance.choice((0, 0, 0, 0, 1, 3))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.1 else data)


def _bits(frames: list[bytearray], chance: random.Random) -> None:
    frame = chance.choice(frames)
    for _ in range(chance.choice((1, 2, 20))):
        if frame:
            frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)


def _words(frames: list[bytearray], chance: random.Random) -> None:
    """Numbers of records and of blocks' starts become others."""
    frame = chance.choice(frames)
    for _ in range(chance.choice((1, 4, 30))):
        if len(frame) >= 4:
            struct.pack_into("<I", frame, chance.randrange(len(frame) // 4) * 4, chance.choice(EXTREMES))


def _blocks(frames: list[bytearray], chance: random.Random) -> None:
    """A block of any type, with any content, somewhere."""
    payload = chance.randbytes(chance.choice((0, 1, 16, 24, 32, 48, 200)))
    kind, thread = chance.randrange(17), chance.choice((0, 1, 1023, 1024, 1 << 31))
    block = struct.pack("<IIII", kind, thread, len(payload), 0) + payload + bytes(-len(payload) % 16)
    frame = chance.choice(frames)
    frame[0:0] = block
    if chance.random() < 0.5:
        frame += block


def _order(frames: list[bytearray], chance: random.Random) -> None:
    if chance.random() < 0.5:
        chance.shuffle(frames)
    else:
        frames.append(bytearray(chance.choice(frames)))
