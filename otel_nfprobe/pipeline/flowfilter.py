# SPDX-License-Identifier: Apache-2.0
"""Flow filter: an expression in the language of pcap-filter(7), compiled and run by libpcap itself.

libpcap is loaded when an expression is given, and never otherwise. The filter runs on headers that are made up from
what is kept of a packet (native/core/flow_filter.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from cffi import FFI

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.linux.bpf import Instruction
from otel_nfprobe.linux.filterprogram import UnknownBytesError, check_reads

_LIBRARIES = ("libpcap.so.0.8", "libpcap.so.1", "libpcap.so")
_RAW_IP = 12  # DLT_RAW
_SNAPLEN_BYTES = 262_144
_ANY_NETMASK = 0xFFFFFFFF  # PCAP_NETMASK_UNKNOWN
_DECLARATIONS = """
typedef struct pcap pcap_t;
struct bpf_insn { uint16_t code; uint8_t jt; uint8_t jf; uint32_t k; };
struct bpf_program { unsigned int bf_len; struct bpf_insn *bf_insns; };
pcap_t *pcap_open_dead(int, int);
int pcap_compile(pcap_t *, struct bpf_program *, const char *, int, uint32_t);
char *pcap_geterr(pcap_t *);
void pcap_close(pcap_t *);
void pcap_freecode(struct bpf_program *);
int pcap_offline_filter(const struct bpf_program *, const void *, const uint8_t *);
"""


class FlowFilter:
    """Says which packets an expression takes.

    Args:
        expression: such as `dst port 443 and net 10.0.0.0/8`; libpcap may ask the resolver for names in it.

    Raises:
        UsageError: libpcap is not there, does not take it, or it looks at what is not kept of a packet.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._ffi, self._pcap = _load()
        self._program = self._ffi.gc(self._ffi.new("struct bpf_program *"), self._pcap.pcap_freecode)
        self._compile(expression)
        try:
            check_reads(self._instructions())
        except UnknownBytesError as error:
            raise UsageError(
                f"--flow {expression!r} looks at {error}, which is not kept of a packet: addresses, protocol, ports,"
                " type and code of ICMP, IP id and length are.",
                "man pcap-filter",
            ) from None
        address = int(self._ffi.cast("uintptr_t", self._pcap.pcap_offline_filter))
        self._run = ffi.cast("nfp_flow_run *", address)
        self._address = ffi.cast("void *", int(self._ffi.cast("uintptr_t", self._program)))

    def match(self, packets: Rows) -> npt.NDArray[np.bool_]:
        """Which packets (dtype PACKET) it takes."""
        packets = np.ascontiguousarray(packets)
        matches = np.zeros(len(packets), np.uint8)
        rows = ffi.cast("struct nfp_packet *", packets.ctypes.data)
        lib.nfp_flow_match(self._run, self._address, rows, len(packets), ffi.from_buffer("uint8_t[]", matches))
        return matches.astype(np.bool_)

    def _compile(self, expression: str) -> None:
        pcap = self._pcap.pcap_open_dead(_RAW_IP, _SNAPLEN_BYTES)
        try:
            text = expression.encode(errors="replace")
            if self._pcap.pcap_compile(pcap, self._program, text, 1, _ANY_NETMASK):
                said = _text(self._ffi.string(self._pcap.pcap_geterr(pcap)))
                raise UsageError(f"--flow {expression!r} cannot be used: {said.rstrip('.')}.", "man pcap-filter")
        finally:
            self._pcap.pcap_close(pcap)

    def _instructions(self) -> Sequence[Instruction]:
        found = self._program.bf_insns[0 : self._program.bf_len]
        return [Instruction(one.code, one.jt, one.jf, one.k) for one in found]


def _text(said: str | bytes) -> str:
    return said if isinstance(said, str) else said.decode(errors="replace")


@cache
def _load() -> tuple[FFI, Any]:
    declared = FFI()
    declared.cdef(_DECLARATIONS)
    for name in _LIBRARIES:
        try:
            return declared, declared.dlopen(name)
        except OSError:
            continue
    raise UsageError("--flow needs libpcap, which is not installed.", "apt-get install libpcap0.8")
