# SPDX-License-Identifier: Apache-2.0
"""Tail calls: a function's tail jumps share its frame, so their targets must not read stack arguments either.

Follows direct jumps, PLT stubs and GOT slots out of a function, as far as they go; a jump that is proven to pass no
stack arguments (arguments.py) is harmless. Reads only: files, and slots of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from otel_nfprobe.arch.architecture import ArgumentProof, of_image
from otel_nfprobe.arch.branches import ModuleScan, scan_module
from otel_nfprobe.arch.code_facts import POINTER_TAIL, STACK_ARGUMENTS, UNKNOWN_FRAME
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.lateregex import compile_late
from otel_nfprobe.elf.elf import ElfImage
from otel_nfprobe.elf.elftables import IFUNC
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import functions_of
from otel_nfprobe.target.target import Target

RETURNS_TWICE = compile_late(
    r"_*(sig)?setjmp(_\w+)?|_*vfork|_*clone[23]?|_*fork|_Fork|getcontext|swapcontext|makecontext"
)
CALLER_SENSITIVE = compile_late(r"_*dl(m?open|v?sym|addr1?|info|iterate_phdr)|__libc_dl\w+|_dl_(open|sym|vsym|addr)\w*")
CALLER_TAIL = "tail-calls a function that inspects its caller"
TWICE_TAIL = "tail-calls a function that returns twice"
VOUCHING_MAX = 32  # chained functions whose earlier verdicts depend on each other
# About stack arguments: harmless for calls without any.
_SOFT = (POINTER_TAIL, STACK_ARGUMENTS)

_Node = tuple[Module, int]
_Slot = tuple[int, int]  # identity of its module, and its address in the file


class _Jump(NamedTuple):
    """A jump out of a function."""

    site: int
    node: _Node | None  # its target, or None
    reason: str  # why the target is unknown, or ""
    is_call: bool  # to the start of a function, like a call in tail position
    name: str  # name of a function of another module
    slot: int = -1  # the slot whose content determines the target, or -1: the file alone does


class TailCalls:
    """Judges functions of one process, or of files.

    Args:
        target: the process whose GOT slots determine the targets of jumps through them, or None.
        clean_unless: a function is known to be harmless if nothing harmful is behind these slots of its module; None:
            nothing is known.

    Attributes:
        consulted: the slots on whose content the verdicts depend that were returned since this was last cleared.
    """

    def __init__(
        self, target: Target | None, clean_unless: Callable[[Module, int], Sequence[int] | None] | None = None
    ) -> None:
        self._target = target
        self._clean_unless = clean_unless
        self.consulted: set[_Slot] = set()
        self._behind: dict[tuple[int, int], frozenset[_Slot]] = {}  # dependencies of the verdict on each function
        self._vouching: set[tuple[int, int]] = set()
        self._modules: list[Module] | None = None
        self._known: dict[tuple[int, int], str] = {}
        self._arguments: dict[ElfImage, ArgumentProof] = {}
        self._slots: dict[tuple[int, int], tuple[_Node | None, str]] = {}
        self._out: dict[tuple[int, int], tuple[list[_Jump], frozenset[_Slot]]] = {}

    def trouble(self, module: Module, index: int) -> str:
        """Returns why this function's frame must stay in place, or "". `index`: in the module's frame table."""
        if scan_module(module.image).is_harmless(index):
            return ""
        root = (id(module), index)
        if root not in self._known and not self._reuse_verdict(module, index):
            before, self.consulted = self.consulted, set()
            self._judge(module, index)
            self._behind[root] = frozenset(self.consulted)
            self.consulted = before
        self.consulted |= self._behind[root]
        return self._known[root]

    def harm_behind(self, module: Module, slot: int) -> _Node | None:
        """Returns the function that the slot leads to if it reads its caller's frame, or may do so; otherwise None."""
        node, _ = self._lead(module, slot)
        return node if node is not None and self.trouble(*node) else None

    def _reuse_verdict(self, module: Module, index: int) -> bool:
        """Takes over the verdict of an earlier analysis if that found no harm and is still valid."""
        root = (id(module), index)
        slots = None if self._clean_unless is None else self._clean_unless(module, index)
        if slots is None or root in self._vouching or len(self._vouching) >= VOUCHING_MAX:
            return False
        self._vouching.add(root)
        holds = all(self.harm_behind(module, slot) is None for slot in slots)
        self._vouching.discard(root)
        if holds:
            self._known[root] = ""
            self._behind[root] = frozenset((id(module), slot) for slot in slots)
        return holds

    def jumps_out(self, module: Module, index: int) -> Iterator[tuple[_Node | None, str]]:
        """Yields jumps out of a function: the target as far as known, and why it is unknown.

        Jumps that are proven to pass no stack arguments are left out.
        """
        proof = self._proof(module)
        for jump in self._jumps(module, index):
            proven = jump.is_call and (proof.none_on_stack(index) or proof.passes_none(index, jump.site, jump.name))
            if not (proven and (not jump.reason or jump.reason in _SOFT)):
                yield jump.node, jump.reason

    def _judge(self, module: Module, index: int) -> None:
        """Examines everything that jumps reach. A clean set of functions is remembered as a whole."""
        root = (id(module), index)
        own = scan_module(module.image).at(index)
        if own.trouble or not (own.jumps or own.slot_jumps or own.pointer_jumps):
            self._known[root] = own.trouble
            return
        # A node is examined once by itself, and once behind a jump that is proven to pass no stack arguments.
        seen: set[tuple[tuple[int, int], bool]] = {(root, False)}
        waiting: list[tuple[_Node, bool]] = [((module, index), False)]
        soft = ""
        while waiting:
            from_node, without = waiting.pop()
            for node, reason, proven in self._harmful(*from_node, without):
                if reason and reason not in _SOFT:
                    self._known[root] = reason
                    return
                soft = soft or reason
                if node is not None:
                    key = ((id(node[0]), node[1]), proven)
                    if key not in seen:
                        seen.add(key)
                        waiting.append((node, proven))
        if soft:
            self._known[root] = "" if self._proof(module).none_on_stack(index) else soft
        else:
            consulted = frozenset(self.consulted)
            # A way out of a module leads through one of its slots.
            owners = {owner for owner, _ in consulted}
            for function, without in seen:
                if not without:
                    self._known[function] = ""
                    self._behind[function] = consulted if function[0] in owners else frozenset()

    def _harmful(self, module: Module, index: int, without: bool) -> Iterator[tuple[_Node | None, str, bool]]:
        """Yields jumps out of a function: target, what is wrong there, whether without stack arguments.

        Args:
            without: the function itself was reached without stack arguments.
        """
        proof = self._proof(module)
        for jump in self._jumps(module, index):
            reason, node, proven = jump.reason, jump.node, without
            if node is not None and not reason:
                if scan_module(node[0].image).is_harmless(node[1]):
                    continue
                known = self._known.get((id(node[0]), node[1]))
                if known is not None:
                    self.consulted |= self._behind[id(node[0]), node[1]]
                if known == "":
                    continue
                reason = known or scan_module(node[0].image).at(node[1]).trouble
            if reason in _SOFT and jump.is_call and not proven:
                proven = proof.none_on_stack(index) or proof.passes_none(index, jump.site, jump.name)
            yield node, "" if proven and reason in _SOFT else reason, proven

    def _jumps(self, module: Module, index: int) -> list[_Jump]:
        key = (id(module), index)
        if key not in self._out:
            found = list(self._find_jumps(module, index))
            self._out[key] = found, frozenset((id(module), jump.slot) for jump in found if jump.slot >= 0)
        jumps, slots = self._out[key]
        self.consulted |= slots
        return jumps

    def _find_jumps(self, module: Module, index: int) -> Iterator[_Jump]:
        scan = scan_module(module.image)
        own = scan.at(index)
        functions = functions_of(module) if own.jumps else ()
        jumps = zip(own.jump_sites, own.jumps, scan.leads_of(index), own.jumps_leave, strict=True)
        for site, address, following, leaves in jumps:
            if following >= 0:
                is_call = leaves and _begins_function(scan, address, following)
                yield _Jump(site, (module, following), "", is_call, functions[following].name)
                continue
            slot = of_image(module.image).stub_slot(module.image, address)
            if slot is None:
                yield _Jump(site, None, UNKNOWN_FRAME, False, "")
            else:
                yield self._through(module, site, slot)
        for site, slot in zip(own.slot_sites, own.slot_jumps, strict=True):
            yield self._through(module, site, slot)
        for site in own.pointer_jumps:
            yield _Jump(site, None, POINTER_TAIL, True, "")

    def _through(self, module: Module, site: int, slot: int) -> _Jump:
        name = module.image.slot_names.get(slot)
        content = slot if _by_name(name) is None else -1
        return _Jump(site, *self._lead(module, slot), True, name or "", content)

    def _lead(self, module: Module, slot: int) -> tuple[_Node | None, str]:
        """Returns the target of jumps through a slot, and why it is unknown, or harmful."""
        key = (id(module), slot)
        if key not in self._slots:
            self._slots[key] = self._resolve(module, slot)
        return self._slots[key]

    def _proof(self, module: Module) -> ArgumentProof:
        if module.image not in self._arguments:
            self._arguments[module.image] = of_image(module.image).prove_arguments(scan_module(module.image))
        return self._arguments[module.image]

    def _resolve(self, module: Module, slot: int) -> tuple[_Node | None, str]:
        name = module.image.slot_names.get(slot)
        reason = _by_name(name)
        if name is None or reason is not None:
            return None, reason or ""
        if self._target is None:
            return _node_named([module], name), ""
        modules = self._loaded(self._target)
        try:
            value = self._target.read_word(module.base + slot)
        except NfprobeError:
            value = 0
        holder = next((item for item in modules if item.low <= value < item.high), None)
        if holder is None:
            return _node_named(modules, name), ""
        if holder.image.section_of(value - holder.base).startswith(".plt"):
            # Not bound yet; or a program's own stub, which represents a function whose address it takes.
            behind = of_image(holder.image).stub_slot(holder.image, value - holder.base)
            if holder is not module and behind is not None:
                name = holder.image.slot_names.get(behind, name)
            return _node_named(modules, name), ""
        if holder.is_dynamic_linker or holder.is_probe_library:
            return None, ""
        index = scan_module(holder.image).index_of(value - holder.base)
        return ((holder, index) if index >= 0 else None), ""

    def _loaded(self, target: Target) -> list[Module]:
        if self._modules is None:
            self._modules = target.modules()
        return self._modules


def _by_name(name: str | None) -> str | None:
    """Returns why jumps through a slot are harmful regardless of its content; None: the content decides."""
    if name is None:
        return POINTER_TAIL  # a variable with a function's address
    if RETURNS_TWICE.fullmatch(name):
        return TWICE_TAIL
    return CALLER_TAIL if CALLER_SENSITIVE.fullmatch(name) else None


def comes_back(scan: ModuleScan, index: int) -> bool:
    """Returns whether jumps out of a function lead back to its own start.

    Such a loop needs no stack; with an in-stack call each iteration would take some and release it too late. Loops
    through pointers are not detected.
    """
    if not scan.may_circle(index):
        return False
    start, pad_bytes = scan.starts[index], of_image(scan.image).landing_pad_bytes
    seen, waiting = {index}, [index]
    while waiting:
        for address in scan.at(waiting.pop()).jumps:
            if start <= address <= start + pad_bytes:
                return True
            following = scan.index_of(address)
            if following >= 0 and following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


def _begins_function(scan: ModuleScan, address: int, index: int) -> bool:
    """Returns whether an address in the function at `index` is its start, and it is not a part of another one."""
    return scan.starts[index] == address and scan.at(index).own_entry and scan.is_called(address)


def _node_named(modules: list[Module], name: str) -> _Node | None:
    """Returns the exported function with that name; None if it is not in these modules, or chosen at run time."""
    for module in modules:
        symbol = module.image.find_export(name)
        if symbol is not None:
            index = -1 if symbol.kind == IFUNC else scan_module(module.image).index_of(symbol.address)
            return (module, index) if index >= 0 else None
    return None
