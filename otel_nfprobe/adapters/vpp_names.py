# SPDX-License-Identifier: Apache-2.0
"""What a running VPP calls the reasons why it drops packets, and its interfaces; read from its memory.

    vlib_main_t -> counters_heap: name, description and severity of each error, by the number in a dropped buffer
    vlib_main_t -> node_main -> node_by_error: the node of each of these numbers
    vnet_main, which libvnet exports -> hw_interfaces, sw_interfaces: pools, by the numbers in buffers

Offsets differ between releases: each is looked for, and what does not fit gives no names. Reads the target only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.adapters.vpp_graph import MAIN_BYTES, NODE_BYTES, Graph, module_exporting, read_vector
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.target.target import Target

VNET_LIBRARY, VNET_SYMBOL = "libvnet", "vnet_main"
ERRORS_MAX = 1 << 16  # a buffer has 16 bits for their numbers
ERROR_BYTES = 24  # name, description, severity, 21.06 as of 26.06
SEVERITIES = 3
NODE_MAIN_BYTES = 1024  # in which node_by_error is looked for
TEXT_BYTES_MAX = 256
PAGE_BYTES = 4096
NODES_FIT = 0.9  # of the nodes with errors; those that have registered theirs anew may differ
POOLS_BYTES = 256  # of vnet_main, in which the pools are looked for
INTERFACES_MAX = 1 << 16
HARDWARE_BYTES = (128, 192, 256, 320)
HARDWARE_NAME = 64  # offset in a hardware interface: its second cache line begins with it
HARDWARE_INDEX = range(16, 60, 4)  # offsets where its number can be; that of its software interface is behind it
SOFTWARE_BYTES = range(40, 164, 4)
SOFTWARE_INDEX, SUPERIOR, HARDWARE, SUB_ID = 4, 8, 16, 36  # offsets in a software interface, of 20.01 as of 26.06
FIRST_INTERFACE = "local0"  # always the first one
FITTING_MAX = 4  # tables that look right and are tried: a target can have thousands


# ---- reasons -----------------------------------------------------------------------------------------------------


def read_reasons(target: Target, graph: Graph) -> dict[int, str]:
    """`NODE: DESCRIPTION` as `show errors` has them, by number; empty where they are not found."""
    main, node_main = graph.mains[0], graph.mains[0] + graph.layout.node_main
    tables = _tables_of_nodes(target, node_main, len(graph.nodes))
    fitting = ((table, _find_firsts(target, node_main, table, len(graph.nodes))) for table in tables)
    for by_error, firsts in islice((pair for pair in fitting if pair[1]), FITTING_MAX):
        for errors in islice(_tables_of_errors(target, main, len(by_error)), FITTING_MAX):
            found = dict(_name_reasons(target, graph, by_error, firsts, errors))
            if found:
                return found
    return {}


def _words(target: Target, address: int, size_bytes: int) -> tuple[int, ...]:
    """Words from an address on, as many of them as can be read."""
    while size_bytes:
        try:
            return struct.unpack(f"<{size_bytes // 8}Q", target.read(address, size_bytes))
        except NfprobeError:
            size_bytes //= 2
    return ()


def _tables_of_nodes(target: Target, node_main: int, nodes: int) -> Iterator[NDArray[np.uint32]]:
    for word in dict.fromkeys(_words(target, node_main, NODE_MAIN_BYTES)):
        content = read_vector(target, word, 1, ERRORS_MAX, 4)
        table = np.frombuffer(content or b"", "<u4")
        if len(table) and table.max() < nodes and len(distinct(table)) > 1:
            yield table


def _find_firsts(target: Target, node_main: int, by_error: NDArray[np.uint32], nodes: int) -> dict[int, int]:
    """The number of each node's first error, where nearly all nodes that have errors agree on its place."""
    owners = distinct(by_error).tolist()
    content = read_vector(target, target.read_word(node_main), nodes, nodes, 8) or b""
    addresses = struct.unpack(f"<{len(content) // 8}Q", content)
    try:
        rows = np.frombuffer(b"".join(target.read(addresses[owner], NODE_BYTES) for owner in owners), "<u4")
    except (NfprobeError, IndexError):
        return {}
    table = rows.reshape(len(owners), -1)
    inside = table < len(by_error)
    fits = inside & (by_error[np.where(inside, table, 0)] == np.array(owners, np.uint32)[:, None])
    # The first error of a node is not that of its neighbour, so a constant fits one node at most.
    column = int(fits.sum(axis=0).argmax())
    if fits[:, column].sum() < NODES_FIT * len(owners):
        return {}
    return {owner: int(table[row, column]) for row, owner in enumerate(owners) if fits[row, column]}


def _tables_of_errors(target: Target, main: int, least: int) -> Iterator[NDArray[np.uint64]]:
    for word in dict.fromkeys(_words(target, main, MAIN_BYTES)):
        content = read_vector(target, word, least, ERRORS_MAX, ERROR_BYTES)
        table = np.frombuffer(content or b"", "<u8").reshape(-1, ERROR_BYTES // 8)
        if len(table) and (table[:least, 2].astype(np.uint32) < SEVERITIES).mean() >= NODES_FIT:
            yield table


def _name_reasons(
    target: Target, graph: Graph, by_error: NDArray[np.uint32], firsts: dict[int, int], errors: NDArray[np.uint64]
) -> Iterator[tuple[int, str]]:
    texts, pages = dict[int, str](), TextReader(target)
    for number, (node, (_, address, severity)) in enumerate(zip(by_error.tolist(), errors.tolist(), strict=False)):
        if number < firsts.get(node, ERRORS_MAX) or severity & 0xFFFFFFFF >= SEVERITIES:
            continue
        if address not in texts:
            texts[address] = pages.read(address)
        if texts[address]:
            yield number, f"{graph.nodes[node].name}: {texts[address]}"


class TextReader:
    """Reads texts of a target. Each page is read once: thousands of texts stand in some hundred."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._pages: dict[int, bytes] = {}

    def read(self, address: int) -> str:
        """A printable string that ends in a zero byte, or nothing."""
        content = b""
        while len(content) < TEXT_BYTES_MAX and b"\0" not in content:
            number, start = divmod(address + len(content), PAGE_BYTES)
            part = self._page(number)[start:]
            if not part:
                return ""
            content += part[: TEXT_BYTES_MAX - len(content)]
        text, end, _ = content.partition(b"\0")
        return text.decode("ascii") if end and _is_printable(text) else ""

    def _page(self, number: int) -> bytes:
        """A page; nothing where none can be read."""
        if number not in self._pages:
            try:
                is_there = 1 <= number < (1 << 47) // PAGE_BYTES
                self._pages[number] = self._target.read(number * PAGE_BYTES, PAGE_BYTES) if is_there else b""
            except NfprobeError:
                self._pages[number] = b""
        return self._pages[number]


def _is_printable(text: bytes) -> bool:
    return all(0x20 <= byte < 0x7F for byte in text)


# ---- interfaces --------------------------------------------------------------------------------------------------


class Interfaces:
    """Names of interfaces as `show interface` has them, by number."""

    def __init__(self, target: Target) -> None:
        self._target = target
        module = module_exporting(target, VNET_SYMBOL, VNET_LIBRARY)
        self._place = 0 if module is None else module.base + module.image.exports[VNET_SYMBOL].address
        self._layout: tuple[int, int, int, int, int] | None = None
        self._seen: tuple[bytes, bytes] | None = None
        self.names: dict[int, str] = {}

    def look(self) -> bool:
        """Whether `names` has changed; cheap where nothing has."""
        if not self._place:
            return False
        layout = self._layout or self._find_layout()
        pools = None if layout is None else self._read_pools(layout)
        if layout is None or pools is None or pools == self._seen:
            return False
        names = dict(self._name(layout, *pools))
        self._layout, self._seen = layout, pools
        changed, self.names = names != self.names, names
        return changed

    def _find_layout(self) -> tuple[int, int, int, int, int] | None:
        """Offset of the pool of hardware interfaces, bytes and number in one, and of that of software interfaces."""
        words = _words(self._target, self._place, POOLS_BYTES)
        hardware = next(self._find_hardware(words), None)
        if hardware is None:
            return None
        for place in range(hardware[0] + 8, len(words) * 8, 8):
            for size in SOFTWARE_BYTES:
                layout = (*hardware, place, size)
                if self._is_software(words[place // 8], size) and self._first_fits(layout):
                    return layout
        return None

    def _find_hardware(self, words: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        for place, word in enumerate(words):
            for size in HARDWARE_BYTES:
                content = read_vector(self._target, word, 1, INTERFACES_MAX, size)
                if content is None or self._name_of(content, 0, size) != FIRST_INTERFACE:
                    continue
                live = [number for number in range(len(content) // size) if self._name_of(content, number, size)]
                for index in HARDWARE_INDEX:
                    if all(_number(content, size * number + index) == number for number in live):
                        # Of one interface alone zeros stand everywhere: the field that holds for more is not known yet.
                        if len(live) > 1:
                            yield place * 8, size, index
                        break

    def _is_software(self, address: int, size: int) -> bool:
        content = read_vector(self._target, address, 2, INTERFACES_MAX, size)
        return content is not None and all(
            _number(content, place + SOFTWARE_INDEX) == number
            for number, place in enumerate(range(0, len(content), size))
        )

    def _first_fits(self, layout: tuple[int, int, int, int, int]) -> bool:
        """Whether every hardware interface leads to a software interface that leads back to it."""
        pools = self._read_pools(layout)
        if pools is None:
            return False
        hardware, software = pools
        size, index = layout[1:3]
        for number in range(len(hardware) // size):
            own = _number(hardware, number * size + index + 4)
            if self._name_of(hardware, number, size) and (
                own >= len(software) // layout[4] or _number(software, own * layout[4] + HARDWARE) != number
            ):
                return False
        return True

    def _read_pools(self, layout: tuple[int, int, int, int, int]) -> tuple[bytes, bytes] | None:
        try:
            places = [self._target.read_word(self._place + layout[part]) for part in (0, 3)]
        except NfprobeError:
            return None
        hardware = read_vector(self._target, places[0], 1, INTERFACES_MAX, layout[1])
        software = read_vector(self._target, places[1], 1, INTERFACES_MAX, layout[4])
        return None if hardware is None or software is None else (hardware, software)

    def _name_of(self, hardware: bytes, number: int, size: int) -> str:
        """Of a hardware interface; empty where there is none."""
        (address,) = struct.unpack_from("<Q", hardware, number * size + HARDWARE_NAME)
        name = (read_vector(self._target, address, 1, TEXT_BYTES_MAX, 1) or b"").split(b"\0")[0]
        return name.decode("ascii") if _is_printable(name) else ""

    def _name(
        self, layout: tuple[int, int, int, int, int], hardware: bytes, software: bytes
    ) -> Iterator[tuple[int, str]]:
        _, size, index, _, software_size = layout
        own: dict[int, str] = {}
        for number in range(len(hardware) // size):
            if _number(hardware, number * size + index) == number:
                own[_number(hardware, number * size + index + 4)] = self._name_of(hardware, number, size)
        for number, place in enumerate(range(0, len(software), software_size)):
            superior = _number(software, place + SUPERIOR)
            if _number(software, place + SOFTWARE_INDEX) != number or not own.get(superior):
                continue
            sub = "" if superior == number else f".{_number(software, place + SUB_ID)}"
            yield number, own[superior] + sub


def _number(content: bytes, place: int) -> int:
    return int(struct.unpack_from("<I", content, place)[0])
