# SPDX-License-Identifier: Apache-2.0
"""Texts of snippets that capture what adapters ask for: arguments of a call, and fields behind them."""

from __future__ import annotations

_ARGUMENTS = ("di", "si", "dx", "cx")  # in registers, by their 16-bit names


def argument_text(argument: int, bits: int) -> str:
    """Returns the snippet for the low 16 or 32 bits of an argument."""
    name = _ARGUMENTS[argument]
    return f"movzx eax, {name}" if bits == 16 else f"mov eax, e{name}"


def arguments_text(high: int, low: int) -> str:
    """Returns the snippet for 48 bits of an argument above 16 of another one."""
    return f"mov rax, r{_ARGUMENTS[high]}; shl rax, 16; movzx ecx, {_ARGUMENTS[low]}; or rax, rcx"


def field_text(argument: int, otherwise: int, offset: int, high_offset: int | None = None) -> str:
    """Returns the snippet for a 16-bit field behind an argument.

    Args:
        argument: changed by the snippet, as only the third and fourth may be.
        otherwise: the argument to take instead of NULL.
        high_offset: of a 32-bit field behind `otherwise`, to be put above the other one.
    """
    pointer, other = (f"r{_ARGUMENTS[number]}" for number in (argument, otherwise))
    chosen, field = f"test {pointer}, {pointer}; cmove {pointer}, {other}", f"word ptr [{pointer}+{offset}]"
    if high_offset is None:
        return f"{chosen}; movzx eax, {field}"
    return f"{chosen}; movzx ecx, {field}; mov eax, dword ptr [{other}+{high_offset}]; shl rax, 32; or rax, rcx"
