# SPDX-License-Identifier: Apache-2.0
"""Flow filter: an expression in the language of pcap-filter(7), compiled and run by libpcap itself.

The filter runs on headers that are made up from what is kept of a packet (native/core/flow_filter.h).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.linux.bpf import Instruction
from otel_nfprobe.linux.filterprogram import UnknownBytesError, check_reads
from otel_nfprobe.pipeline.libpcap import load_libpcap, read_text

_RAW_IP = 12  # DLT_RAW
_SNAPLEN_BYTES = 262_144
_ANY_NETMASK = 0xFFFFFFFF  # PCAP_NETMASK_UNKNOWN


class FlowFilter:
    """Says which packets an expression takes.

    Args:
        expression: such as `dst port 443 and net 10.0.0.0/8`; libpcap may ask the resolver for names in it.

    Raises:
        UsageError: libpcap is not there, does not take it, or it looks at what is not kept of a packet.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._ffi, self._pcap = load_libpcap("--flow")
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
                said = read_text(self._ffi, self._pcap.pcap_geterr(pcap))
                raise UsageError(f"--flow {expression!r} cannot be used: {said}.", "man pcap-filter")
        finally:
            self._pcap.pcap_close(pcap)

    def _instructions(self) -> Sequence[Instruction]:
        found = self._program.bf_insns[0 : self._program.bf_len]
        return [Instruction(one.code, one.jt, one.jf, one.k) for one in found]
