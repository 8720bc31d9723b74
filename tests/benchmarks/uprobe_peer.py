# SPDX-License-Identifier: Apache-2.0
"""The peer of bench_probe.py: what eBPF tools do at a function's entry and exit, by uprobe and uretprobe.

At each of the two a BPF program reads the kernel's clock and counts; it hands nothing to anybody, so real tools cost
more. Everything is gone when its descriptors are closed. Attributes: struct perf_event_attr; `config1` is the path of
the program and `config2` the offset in it, as the kernel's uprobe event source has them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from otel_nfprobe.elf.elf import ElfImage
from otel_nfprobe.kernel import bpfcall
from otel_nfprobe.kernel.programs import NOW_NS, Assembler
from otel_nfprobe.linux.perfring import event_attributes, open_event

SOURCE = Path("/sys/bus/event_source/devices/uprobe")
AT_ENTRY, AT_EXIT = 0, 1  # of config
SET_PROGRAM = 0x40042408  # ioctl PERF_EVENT_IOC_SET_BPF
KPROBE = 2  # type of programs


def find_offsets(binary: Path, prefix: str) -> list[int]:
    """File offsets of the functions whose names begin so."""
    image = ElfImage(str(binary), binary.read_bytes())
    found = {symbol.address for symbol in image.symbols if symbol.name.startswith(prefix)}
    return [
        address - segment.address + segment.offset
        for address in sorted(found)
        for segment in image.segments
        if segment.address <= address < segment.address + segment.file_bytes
    ]


def _load_program(counts: int, stop: ExitStack) -> int:
    code = Assembler()
    code.call(NOW_NS)
    code.count(counts, 0)
    code.leave()
    instructions, licence = code.assemble(), ctypes.create_string_buffer(bpfcall.LICENSE)
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    words = KPROBE, len(instructions) // 8, ctypes.addressof(buffer), ctypes.addressof(licence)
    program = bpfcall.call_bpf(bpfcall.PROGRAM_LOAD, struct.pack("<IIQQ", *words))
    stop.callback(os.close, program)
    return program


@contextmanager
def uprobes(
    pid: int, binary: Path, offsets: Sequence[int], ends: Sequence[int] = (AT_ENTRY, AT_EXIT)
) -> Iterator[Callable[[], int]]:
    """Probes at entry, exit or both of each of the functions, with their program, in one process.

    Yields:
        what reads how often the program ran.

    Raises:
        OSError: the kernel has none, or does not allow it.
    """
    kind = int((SOURCE / "type").read_text())
    path = ctypes.create_string_buffer(os.fsencode(binary))
    with ExitStack() as stop:
        counts = bpfcall.make_map(bpfcall.ARRAY, 4, 8, 1)
        stop.callback(os.close, counts)
        program = _load_program(counts, stop)
        for offset in offsets:
            for config in ends:
                attributes = event_attributes(kind, config, 0, config1=ctypes.addressof(path), config2=offset)
                descriptor = open_event(attributes, pid)
                stop.callback(os.close, descriptor)
                fcntl.ioctl(descriptor, SET_PROGRAM, program)
        yield lambda: int.from_bytes(bpfcall.read_value(counts, 8), "little")
