# SPDX-License-Identifier: Apache-2.0
"""Unwinders that learn of trampolines only from the dynamic linker: LLVM's libunwind, and those linked into modules.

They ask the dynamic linker which file an address belongs to. In modules that contain one, the slots of the functions
that answer this are redirected to the probe library, which adds arenas to the answer (native/probe/finder.c). The slots
stay redirected for the life of the target, as trampolines do: a thread that is inside one at a detach may still throw.
docs/stacks.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from otel_nfprobe.elf.modules import Module
from otel_nfprobe.probes.patch import Patcher
from otel_nfprobe.probes.slots import is_lazy
from otel_nfprobe.target.loadedlibrary import library_offset
from otel_nfprobe.target.target import Target

ANSWERS = {"dl_iterate_phdr": "nfprobe_iterate_phdr", "_dl_find_object": "nfprobe_find_object"}
SHARED_UNWINDER = "libgcc_s.so"  # has a list of its own, which accepts rows registered at run time
UNWINDS = "_Unwind_RaiseException"


def tell_unwinders(target: Target, patcher: Patcher, modules: Iterable[Module]) -> int:
    """Lets the unwinders of these modules find trampolines. Returns the number of slots changed.

    Raises:
        NfprobeError: the target has ended.
    """
    library, musl = patcher.session.library, target.runs_on_musl
    changed = 0
    for module in modules:
        for slot, name in _asking_slots(module):
            value, answer = target.read_word(slot), library + library_offset(musl, ANSWERS[name])
            # Any other content was put there by another party.
            if is_lazy(module, value) or value in _addresses(target, name):
                changed += patcher.lead(slot, value, answer)
    return changed


def has_unwinder(module: Module) -> bool:
    """Returns whether the module itself contains an unwinder that asks the dynamic linker for its location."""
    image = module.image
    if module.is_dynamic_linker or module.is_probe_library or module.name.startswith(SHARED_UNWINDER):
        return False
    if not image.may_name(*ANSWERS):
        return False
    imported = set(image.slot_names.values())
    if imported.isdisjoint(ANSWERS) or not imported.isdisjoint(image.exports.keys() & ANSWERS.keys()):
        return False
    if UNWINDS in image.exports:
        return True
    return not any(name.startswith("_Unwind_") for name in imported) and any(
        frame.has_lsda for frame in image.frames.frames
    )


def _asking_slots(module: Module) -> Iterator[tuple[int, str]]:
    if has_unwinder(module):
        for slot in module.image.slots:
            if slot.name in ANSWERS:
                yield module.base + slot.address, slot.name


def _addresses(target: Target, name: str) -> set[int]:
    return {_address(module, name) for module in target.modules()} - {0}


def _address(module: Module, name: str) -> int:
    symbol = module.image.find_export(name)
    return 0 if symbol is None else module.base + symbol.address
