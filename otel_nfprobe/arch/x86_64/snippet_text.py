# SPDX-License-Identifier: Apache-2.0
"""Snippet text: parses a snippet, a few instructions in Intel syntax, without an assembler.

    mov rax, [rdi+8]; shr rax, 3

Only instructions that compute are permitted, into rax, rcx, rdx and r11; everything else is refused with a sentence
that gives the reason. Pure. snippet_code.py compares the result with what an assembler makes of the same text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from iced_x86 import Mnemonic, Register, Register_, RegisterExt

from otel_nfprobe.arch.snippet import HELP
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.base.lateregex import compile_late

INSTRUCTIONS_MAX = 16
DESTINATIONS = (Register.RAX, Register.RCX, Register.RDX, Register.R11)
SIZES = {"byte": 1, "word": 2, "dword": 4, "qword": 8}

_LOW = ("ax", "cx", "dx", "bx", "sp", "bp", "si", "di")
_PARTS = ("al", "cl", "dl", "bl", "spl", "bpl", "sil", "dil")
_HIGH_PARTS = ("ah", "ch", "dh", "bh")  # next to some registers they crash the assembler, and this process with it
_NAMES = [prefix + name for prefix in ("r", "e", "") for name in _LOW] + [*_PARTS]
REGISTERS: dict[str, Register_] = {name: getattr(Register, name.upper()) for name in _NAMES}
REGISTERS |= {
    f"r{number}{asked}": getattr(Register, f"R{number}{known}")
    for number in range(8, 16)
    for asked, known in (("", ""), ("d", "D"), ("w", "W"), ("b", "L"))
}

_ALIASES = {  # of condition codes
    "z": "e",
    "nz": "ne",
    "c": "b",
    "nae": "b",
    "nb": "ae",
    "nc": "ae",
    "na": "be",
    "nbe": "a",
    "pe": "p",
    "po": "np",
    "nge": "l",
    "nl": "ge",
    "ng": "le",
    "nle": "g",
}
_PLAIN = ("o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g")
_CONDITIONS = (*_PLAIN, *_ALIASES)

# Operand kinds: d a writable register, r any register, m memory, i a number, c a number or cl, b a writable one-byte
# register.
_FORMS: dict[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("mov", "add", "sub", "and", "or", "xor"), (("d", "rmi"),)),
    **dict.fromkeys(("movzx", "movsx", "movsxd", "popcnt"), (("d", "rm"),)),
    **dict.fromkeys(("not", "neg", "bswap"), (("d",),)),
    **dict.fromkeys(("shl", "shr", "sar", "rol", "ror"), (("d", "c"),)),
    **dict.fromkeys(("cmp", "test"), (("rm", "rmi"),)),
    **{f"cmov{condition}": (("d", "rm"),) for condition in _CONDITIONS},
    **{f"set{condition}": (("b",),) for condition in _CONDITIONS},
    "lea": (("d", "m"),),
    "imul": (("d", "rm"), ("d", "rm", "i")),
    "xchg": (("d", "d"),),
}
_SHORT_LIST = (
    "mov, movzx, movsx, movsxd, lea, add, sub, and, or, xor, not, neg, shl, shr, sar, rol, ror, imul, bswap, popcnt, "
    "cmp, test, cmovCC, setCC and xchg"
)

_NUMBER = compile_late(r"0x[0-9a-f]+|0|[1-9][0-9]*")
_SIZED = compile_late(r"(?:([a-z]+)\s+ptr\s*)?\[([^][]*)\]")
_SEGMENT = compile_late(r"\b[cdefgs]s\s*:")
_TERM = compile_late(r"\s*([+-]?)\s*([^+-]+)")


@dataclass(frozen=True, slots=True)
class Memory:
    """The operand at base + index * scale + displacement.

    Attributes:
        size_bytes: bytes read; 0 for an address that is only computed.
        base, index: registers, or Register.NONE; in the order of their numbers where the scale is 1.
    """

    size_bytes: int
    base: int
    index: int
    scale: int
    displacement: int


@dataclass(frozen=True, slots=True)
class Number:
    """A constant."""

    value: int


@dataclass(frozen=True, slots=True)
class Named:
    """A register."""

    register: Register_

    @property
    def size_bytes(self) -> int:
        """Its width."""
        return int(RegisterExt.size(self.register))

    @property
    def whole(self) -> int:
        """The 64-bit register that contains it."""
        return int(RegisterExt.full_register(self.register))


Operand = Named | Memory | Number


@dataclass(frozen=True, slots=True)
class Asked:
    """One instruction as the user wrote it.

    Attributes:
        text: its text.
        mnemonic: iced's Mnemonic.
        operands: the destination first.
    """

    text: str
    mnemonic: int
    operands: tuple[Operand, ...]

    @property
    def is_result(self) -> bool:
        """Whether it sets all of rax."""
        no_writes = (Mnemonic.CMP, Mnemonic.TEST)
        written = self.operands if self.mnemonic == Mnemonic.XCHG else self.operands[:1]
        return self.mnemonic not in no_writes and any(
            isinstance(operand, Named) and operand.register in (Register.RAX, Register.EAX) for operand in written
        )


def normalise_memory(size_bytes: int, base: int, index: int, scale: int, displacement: int) -> Memory:
    """Returns the canonical form of an address."""
    if scale == 1:
        base, index = sorted((base, index), reverse=Register.NONE in (base, index))
    return Memory(size_bytes, base, index, scale, displacement)


def read_snippet(text: str) -> list[Asked]:
    """Parses the instructions of a snippet.

    Raises:
        UsageError: something in it is not permitted; says what and why.
    """
    lines = [line for line in (part.strip() for part in re.split(r"[;\n]", text.lower())) if line]
    if not lines:
        raise UsageError("A snippet without instructions captures nothing.", HELP)
    if len(lines) > INSTRUCTIONS_MAX:
        raise UsageError(f"A snippet has at most {INSTRUCTIONS_MAX} instructions; this one has {len(lines)}.", HELP)
    asked = [_read(line) for line in lines]
    if not any(instruction.is_result for instruction in asked):
        raise UsageError(f"No instruction of {text!r} writes rax or eax, which must contain the captured value.", HELP)
    return asked


def refuse(text: str, why: str) -> UsageError:
    """Returns the error for one instruction."""
    return UsageError(f"{text!r} cannot be in a snippet: {why}.", HELP)


def _read(text: str) -> Asked:
    name, _, rest = re.sub(r"\s+", " ", text).partition(" ")
    forms = _FORMS.get(name)
    if forms is None:
        raise refuse(text, f"{name} is not one of the instructions that only compute ({_SHORT_LIST})")
    operands = [_read_operand(text, part.strip()) for part in rest.split(",")] if rest else []
    form = next((form for form in forms if len(form) == len(operands)), None)
    if form is None:
        counts = " or ".join(str(len(form)) for form in forms)
        raise refuse(text, f"{name} has {counts} operands here")
    for position, (allowed, operand) in enumerate(zip(form, operands, strict=True)):
        _check(text, position, allowed, operand)
    return Asked(text, _mnemonic(name, operands), _size_memory(text, name, operands))


def _mnemonic(name: str, operands: list[Operand]) -> int:
    for prefix in ("cmov", "set"):
        if name.startswith(prefix):
            condition = name.removeprefix(prefix)
            name = prefix + _ALIASES.get(condition, condition)
    source = operands[-1]
    if name == "movsx" and isinstance(source, Named | Memory) and source.size_bytes == SIZES["dword"]:
        name = "movsxd"
    return int(getattr(Mnemonic, name.upper()))


def _check(text: str, position: int, allowed: str, operand: Operand) -> None:
    if allowed in ("d", "b"):
        _check_destination(text, operand)
        if allowed == "b" and isinstance(operand, Named) and operand.size_bytes != 1:
            raise refuse(text, "its operand has one byte, such as al")
        return
    kind = {Named: "r", Memory: "m", Number: "i"}[type(operand)]
    if allowed == "c":
        if kind != "i" and operand != Named(Register.CL):
            raise refuse(text, "a shift is by a number or by cl")
    elif kind not in allowed:
        names = {"r": "a register", "m": "memory", "i": "a number"}
        wanted = " or ".join(names[letter] for letter in allowed)
        raise refuse(text, f"operand {position + 1} is {names[kind]}, where only {wanted} is permitted")


def _check_destination(text: str, operand: Operand) -> None:
    if isinstance(operand, Memory):
        raise refuse(text, "a snippet writes nothing to memory")
    if isinstance(operand, Number):
        raise refuse(text, "a number cannot be written to")
    if operand.whole not in DESTINATIONS:
        raise refuse(text, "only rax, rcx, rdx and r11 are saved around a snippet, so it may write no other register")


def _read_operand(text: str, operand: str) -> Operand:
    if _SEGMENT.search(operand):
        raise refuse(text, "memory with a segment (fs:, gs:) cannot be read, as assemblers get it wrong")
    if operand in _HIGH_PARTS:
        raise refuse(text, f"{operand} cannot be used: shift the whole register to the right by 8 instead")
    if operand in REGISTERS:
        return Named(REGISTERS[operand])
    number = operand.removeprefix("-").lstrip()
    if _NUMBER.fullmatch(number):
        return Number(-int(number, 0) if operand.startswith("-") else int(number, 0))
    memory = _SIZED.fullmatch(operand)
    if memory and (memory[1] or "qword") in SIZES:
        return _read_memory(text, SIZES.get(memory[1], 0), memory[2])
    kinds = "neither a general register, nor a number such as 16 or 0x10, nor memory such as [rdi+8]"
    raise refuse(text, f"{operand!r} is {kinds}")


def _read_memory(text: str, size_bytes: int, address: str) -> Memory:
    displacement, registers = 0, []
    position = 0
    while position < len(address):
        term = _TERM.match(address, position)
        if term is None or (position and not term[1]):
            raise refuse(text, f"[{address}] is not base + index * scale + number")
        position = term.end()
        factors = [factor.strip() for factor in term[2].split("*")]
        if len(factors) == 1 and _NUMBER.fullmatch(factors[0]):
            displacement += -int(factors[0], 0) if term[1] == "-" else int(factors[0], 0)
            continue
        registers.append(_read_scaled(text, factors, term[1] == "-"))
    if not registers:
        raise refuse(text, "memory is read relative to a register: move the address into rax first, then read [rax]")
    registers.sort(key=lambda item: item[1])
    if len(registers) > 2 or (len(registers) == 2 and registers[0][1] != 1):
        raise refuse(text, f"[{address}] is not base + index * scale + number")
    if len(registers) == 1 and registers[0][1] != 1:
        registers.insert(0, (Register.NONE, 1))
    (base, _), (index, scale) = registers if len(registers) == 2 else (registers[0], (Register.NONE, 1))
    return normalise_memory(size_bytes, base, index, scale, displacement)


def _read_scaled(text: str, factors: list[str], is_negative: bool) -> tuple[int, int]:
    """Returns a register and its scale."""
    if len(factors) == 2 and _NUMBER.fullmatch(factors[0]):
        factors.reverse()
    name, scale = factors[0], factors[1] if len(factors) == 2 else "1"
    register = REGISTERS.get(name, Register.NONE)
    if len(factors) > 2 or is_negative or scale not in ("1", "2", "4", "8"):
        raise refuse(text, "an index must be added, with a scale of 1, 2, 4 or 8")
    if register == Register.NONE or RegisterExt.size(register) != SIZES["qword"]:
        raise refuse(text, f"{name!r} is not a 64-bit general register, as addresses require")
    return register, int(scale)


def _size_memory(text: str, name: str, operands: list[Operand]) -> tuple[Operand, ...]:
    """Returns the operands, with the size of memory filled in if it is not written."""
    registers = [operand for operand in operands if isinstance(operand, Named)]
    sized: list[Operand] = []
    for operand in operands:
        if isinstance(operand, Memory) and name == "lea":
            operand = replace(operand, size_bytes=0)
        elif isinstance(operand, Memory) and not operand.size_bytes:
            if name == "movsxd":
                operand = replace(operand, size_bytes=SIZES["dword"])
            elif name in ("movzx", "movsx") or not registers:
                raise refuse(text, "the size of the read must be given: byte, word, dword or qword ptr [...]")
            else:
                operand = replace(operand, size_bytes=registers[0].size_bytes)
        sized.append(operand)
    return tuple(sized)
