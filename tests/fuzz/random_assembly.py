# SPDX-License-Identifier: Apache-2.0
"""Random assembly functions, straight-line and branching, with right frame rules: what compilers seldom write.

Every function keeps the ABI's preserved registers and may destroy all others, so that registers and flags after
a call tell whether a copy did the same. Each call of f3 is counted in calls+24 where it is made: loops to a
function's own start are no calls.
"""

from __future__ import annotations

import random

HEAD = """
	.data
	.globl data, calls, fuel
	.balign 64
data:	.fill 1024, 1, 0
calls:	.fill 128, 8, 0
fuel:	.quad 0
	.text
# void invoke(unsigned long registers[32], void *function): all registers in, all registers and flags out
	.globl invoke
	.type invoke, @function
invoke:
	push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15; push %rdi
	mov %rsp,saved(%rip)
	mov %rsi,wanted(%rip)
	movdqu 128(%rdi),%xmm0; movdqu 144(%rdi),%xmm1
	mov 8(%rdi),%rcx; mov 16(%rdi),%rdx; mov 24(%rdi),%rbx; mov 40(%rdi),%rbp; mov 48(%rdi),%rsi
	mov 64(%rdi),%r8; mov 72(%rdi),%r9; mov 80(%rdi),%r10; mov 88(%rdi),%r11
	mov 96(%rdi),%r12; mov 104(%rdi),%r13; mov 112(%rdi),%r14; mov 120(%rdi),%r15
	mov (%rdi),%rax; mov 56(%rdi),%rdi
	call *wanted(%rip)
	mov saved(%rip),%rsp
	pushf
	xchg %rdi,8(%rsp)
	mov %rax,(%rdi); pop %rax; mov %rax,160(%rdi); pop %rax; mov %rax,56(%rdi)
	movdqu %xmm0,128(%rdi); movdqu %xmm1,144(%rdi)
	mov %rcx,8(%rdi); mov %rdx,16(%rdi); mov %rbx,24(%rdi); mov %rbp,40(%rdi); mov %rsi,48(%rdi)
	mov %r8,64(%rdi); mov %r9,72(%rdi); mov %r10,80(%rdi); mov %r11,88(%rdi)
	mov %r12,96(%rdi); mov %r13,104(%rdi); mov %r14,112(%rdi); mov %r15,120(%rdi)
	pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx
	ret
	.local saved, wanted
	.comm saved, 8, 8
	.comm wanted, 8, 8
"""
TAIL = '\t.section .note.GNU-stack,"",@progbits\n'

SCRATCH = ("rax", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")
SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")
TWO_REGISTERS = ("add", "sub", "xor", "and", "or", "adc", "sbb", "cmp", "test", "mov", "xchg")
SMALL_TO_MEMORY = ("addq", "andq", "cmpq", "movq", "testq", "orl", "xorw", "movb")
FROM_MEMORY = ("mov", "add", "xor", "imul", "cmova", "cmovl", "adc", "popcnt")
CONDITIONS = ("e", "ne", "l", "ge", "b", "ae", "s", "ns", "o", "p", "g", "be")
PADDING = (".p2align 4", ".p2align 3", ".p2align 4,0xcc", "int3", "nopw 0(%rax,%rax)", "ud2", "nop")
DISPLACEMENTS = ("", "", "{disp8} ", "{disp32} ")


class _Function:
    """Writes one function."""

    def __init__(self, chance: random.Random, number: int, popping: dict[int, int]) -> None:
        self.chance = chance
        self.number = number
        self.popping = popping  # function -> bytes of stack arguments that it removes
        self.lines: list[str] = []
        self.cold: list[str] = []
        self.depth = 8  # of the frame, from the stack pointer to the CFA
        self.saved: list[str] = []
        self.locals_bytes = 0
        self.label = 0
        self.counter = False  # rcx is in use
        self.pops = chance.choice((0, 0, 0, 0, 0, 8, 16))

    def write(self) -> str:
        chance, name = self.chance, f"f{self.number}"
        visible = [f"\t.globl {name}"] if chance.random() < 0.5 else []
        head = [f"\t.p2align {chance.choice((0, 4, 4, 5))}", *visible, f"\t.type {name}, @function", f"{name}:"]
        self._fill()
        self.popping[self.number] = self.pops
        body = [*head, "\t.cfi_startproc", *self.lines, "\t.cfi_endproc", f"\t.size {name}, . - {name}"]
        return "\n".join([*body, *self.cold]) + "\n"

    def _fill(self) -> None:
        chance = self.chance
        if chance.random() < 0.3:
            self._put("endbr64")
        shape = chance.random()
        if shape < 0.15:  # very short
            for _ in range(chance.randrange(0, 3)):
                self._plain()
            self._leave()
            return
        fuelled = chance.random() < 0.6
        if fuelled:
            self._put("subq $1,fuel(%rip)", f"jb {self.chance.choice(('5f', '5f', '5f'))}")
        if chance.random() < 0.3:
            self._block(2)
        if chance.random() < 0.3 and fuelled:  # a loop to the own start
            self._plain()
            self._put(f"{chance.choice(('', '{disp32} '))}j{chance.choice(CONDITIONS)} f{self.number}")
        if chance.random() < 0.4:  # leaves early, some by a conditional tail jump
            self._early()
        self._open_frame()
        self._block(chance.randrange(2, 10), fuelled)
        if chance.random() < 0.4 and self.depth > 8:
            self._cold_part()
        several = chance.random() < 0.3
        if several:
            label = self._fresh()
            self._put(f"j{chance.choice(CONDITIONS)} {label}")
            saved, locals_bytes, depth = list(self.saved), self.locals_bytes, self.depth
            self._put(".cfi_remember_state")
            self._close_frame()
            self._leave()
            self._padding()
            self._put(".cfi_restore_state", f"{label}:")
            self.saved, self.locals_bytes, self.depth = saved, locals_bytes, depth
            self._block(2, fuelled)
        self._close_frame()
        self._leave()
        if fuelled:
            self._padding()
            self._put("5:", "movq $0,fuel(%rip)")
            self._put(f"ret ${self.pops}" if self.pops else "ret")
        if self._callees() and chance.random() < 0.3:  # as a function that ends in a call of abort()
            self._put(f"call f{chance.choice(self._callees())}")

    def _put(self, *lines: str) -> None:
        self.lines += [line if line.endswith(":") else f"\t{line}" for line in lines]

    def _fresh(self) -> str:
        self.label += 1
        return f".L{self.number}_{self.label}"

    # ---- frames and ends -----------------------------------------------------------------------------------

    def _open_frame(self) -> None:
        chance = self.chance
        for register in chance.sample(SAVED, chance.randrange(0, 4)):
            self.depth += 8
            self._put(f"push %{register}", f".cfi_def_cfa_offset {self.depth}")
            self._put(f".cfi_offset {register}, -{self.depth}")
            self.saved.append(register)
        if chance.random() < 0.6:
            self.locals_bytes = chance.choice((16, 40, 144, 1024))
            self.depth += self.locals_bytes
            self._put(f"sub ${self.locals_bytes},%rsp", f".cfi_def_cfa_offset {self.depth}")
            for offset in range(0, min(self.locals_bytes, 144), 8):
                self._put(f"movq ${chance.randrange(1 << 31)},{offset}(%rsp)")

    def _close_frame(self) -> None:
        if self.locals_bytes:
            self.depth -= self.locals_bytes
            self._put(f"add ${self.locals_bytes},%rsp", f".cfi_def_cfa_offset {self.depth}")
        for register in reversed(self.saved):
            self.depth -= 8
            self._put(f"pop %{register}", f".cfi_def_cfa_offset {self.depth}", f".cfi_restore {register}")
        self.saved, self.locals_bytes = [], 0

    def _callees(self) -> list[int]:
        return list(self.popping)

    def _tails(self) -> list[int]:
        """Functions that may be jumped to: they remove as many stack arguments as this one."""
        return [number for number, pops in self.popping.items() if pops == self.pops]

    def _leave(self) -> None:
        chance, tails = self.chance, self._tails()
        if tails and chance.random() < 0.35:
            to = chance.choice(tails)
            self._put(f"addq $1,calls+{8 * to}(%rip)")
            direct = f"{chance.choice(DISPLACEMENTS)}jmp f{to}"
            self._put(f"jmp *pointer{to}(%rip)" if chance.random() < 0.2 else direct)
        else:
            plain = chance.choice(("ret", "ret", "ret", "rep ret", "bnd ret"))
            self._put(f"ret ${self.pops}" if self.pops else plain)

    def _early(self) -> None:
        chance, tails = self.chance, self._tails()
        if tails and chance.random() < 0.5:
            to = chance.choice(tails)
            register = chance.choice(SCRATCH)
            self._put(f"addq $1,calls+{8 * to}(%rip)", f"test ${1 << chance.randrange(8)},%{_low(register)}")
            self._put(f"{chance.choice(DISPLACEMENTS)}j{chance.choice(('e', 'ne'))} f{to}")
            self._put(f"subq $1,calls+{8 * to}(%rip)")
        else:
            label = self._fresh()
            self._put(f"j{chance.choice(CONDITIONS)} {label}")
            self._put(f"ret ${self.pops}" if self.pops else "ret")
            self._padding()
            self._put(f"{label}:")

    def _padding(self) -> None:
        self._put(self.chance.choice(PADDING))

    def _cold_part(self) -> None:
        back, entry, part = self._fresh(), self._fresh(), f"f{self.number}.cold"
        self._put(f"j{self.chance.choice(CONDITIONS)} {entry}", f"{back}:")
        kept, self.lines = self.lines, []
        self._put('.section .text.unlikely,"ax",@progbits', f".type {part}, @function", f"{part}:", ".cfi_startproc")
        self._put(f".cfi_def_cfa_offset {self.depth}")
        place = 16
        for register in self.saved:
            self._put(f".cfi_offset {register}, -{place}")
            place += 8
        self._put(f"{entry}:")
        self._block(self.chance.randrange(1, 4))
        if self.chance.random() < 0.3:
            saved, locals_bytes, depth = list(self.saved), self.locals_bytes, self.depth
            self._put(".cfi_remember_state")
            over = self._fresh()
            self._put(f"j{self.chance.choice(CONDITIONS)} {over}")
            self._close_frame()
            self._leave()
            self._put(".cfi_restore_state", f"{over}:")
            self.saved, self.locals_bytes, self.depth = saved, locals_bytes, depth
        self._put(f"jmp {back}", ".cfi_endproc", f".size {part}, . - {part}", ".text")
        self.lines, self.cold = kept, self.cold + self.lines

    # ---- what functions do ---------------------------------------------------------------------------------

    def _block(self, steps: int, fuelled: bool = False) -> None:
        for _ in range(steps):
            kind = self.chance.random()
            if kind < 0.5:
                self._plain()
            elif kind < 0.65:
                self._forward(fuelled)
            elif kind < 0.78 and not self.counter:
                self._loop()
            elif self._callees() and not self.counter:
                self._call(fuelled)

    def _forward(self, fuelled: bool) -> None:
        label = self._fresh()
        size = self.chance.choice(DISPLACEMENTS)
        jump = f"{size}j{self.chance.choice(CONDITIONS)}"
        if not self.counter and self.chance.random() < 0.2:
            jump, size = self.chance.choice(("jrcxz", "jecxz")), "{disp8} "
        self._put(f"{jump} {label}")
        before = len(self.lines)
        if size == "{disp8} " or jump.endswith("cxz"):
            for _ in range(self.chance.randrange(1, 4)):
                self._plain()
        else:
            self._block(self.chance.choice((1, 2, 3, 12)), fuelled)
        if len(self.lines) == before:
            self._put("nop")
        self._put(f"{label}:")

    def _loop(self) -> None:
        label = self._fresh()
        self._put(f"mov ${self.chance.randrange(1, 5)},%ecx", f"{label}:")
        self.counter = True
        for _ in range(self.chance.randrange(1, 4)):
            self._plain()
        self.counter = False
        end = self.chance.choice(("loop", "dec", "lea", "loopne"))
        if end == "lea":
            over = self._fresh()
            self._put("lea -1(%rcx),%rcx", f"jrcxz {over}", f"jmp {label}", f"{over}:")
        elif end == "dec":
            self._put("dec %rcx", f"{self.chance.choice(('', '{disp32} '))}jne {label}")
        else:
            self._put(f"{end} {label}")

    def _call(self, fuelled: bool) -> None:
        chance = self.chance
        to = chance.choice(self._callees())
        pops = self.popping[to]
        if fuelled and self.pops == 0 and chance.random() < 0.2:
            to, pops = self.number, 0
        for _ in range(pops // 8):
            self.depth += 8
            self._put(f"push %{chance.choice(SCRATCH)}", ".cfi_adjust_cfa_offset 8")
        self._put(f"addq $1,calls+{8 * to}(%rip)")
        kind = chance.random()
        if kind < 0.15 and to != self.number:
            self._put(f"call *pointer{to}(%rip)")
        elif kind < 0.3:
            self._put(f"lea f{to}(%rip),%r11", "call *%r11")
        else:
            self._put(f"call f{to}")
        if pops:
            self.depth -= pops
            self._put(f".cfi_adjust_cfa_offset -{pops}")

    def _data(self, size_bytes: int = 8) -> str:
        return f"data+{self.chance.randrange(1024 - size_bytes)}(%rip)"

    def _plain(self) -> None:
        chance = self.chance
        a, b = chance.sample((*SCRATCH, *self.saved), 2)
        number = chance.randrange(1, 1 << 31)
        choices = [
            lambda: f"{chance.choice(TWO_REGISTERS)} %{a},%{b}",
            lambda: f"{chance.choice(('addl', 'subl', 'xorl', 'cmpl', 'imull', 'testl'))} ${number},%{_half(a)}",
            lambda: f"{chance.choice(SMALL_TO_MEMORY)} ${number % 99 + 1},{self._data()}",
            lambda: f"{chance.choice(('addl', 'movl', 'cmpl', 'testl'))} ${number},{self._data()}",
            lambda: f"{chance.choice(FROM_MEMORY)} {self._data()},%{a}",
            lambda: f"{chance.choice(('mov', 'add', 'sub', 'lock xadd', 'xchg', 'sbb'))} %{a},{self._data()}",
            lambda: f"{chance.choice(('movzbl', 'movsbl', 'movzwl'))} {self._data()},%{_half(a)}",
            lambda: f"lea {chance.randrange(-200, 200)}(%{a},%{b},{chance.choice((1, 2, 4, 8))}),%{a}",
            lambda: f"cmov{chance.choice(CONDITIONS)} %{a},%{b}",
            lambda: f"set{chance.choice(CONDITIONS)} %{_low(a)}",
            lambda: f"{chance.choice(('shl', 'shr', 'sar', 'rol', 'ror'))} ${chance.randrange(1, 40)},%{a}",
            lambda: f"{chance.choice(('bswap', 'not', 'neg', 'inc', 'dec'))} %{a}",
            lambda: f"shld ${chance.randrange(1, 30)},%{a},{self._data()}",
            lambda: f"movabs ${number * 0x1234567},%{a}",
            lambda: f"movdqu {self._data(16)},%xmm{chance.randrange(2)}",
            lambda: f"movdqu %xmm{chance.randrange(2)},{self._data(16)}",
            lambda: f"paddd %xmm0,%xmm1\n\tpalignr ${chance.randrange(15)},%xmm1,%xmm0",
            lambda: f"pextrq $1,%xmm0,%{a}",
            lambda: f"cqto\n\tcltq\n\t{chance.choice(('stc', 'clc', 'cmc', 'nop', 'pause', 'lahf', 'data16 nop'))}",
            lambda: f"mov %{a},-24(%rsp)\n\tmov -24(%rsp),%{b}",
            lambda: f"push %{a}\n\t.cfi_adjust_cfa_offset 8\n\tpop %{b}\n\t.cfi_adjust_cfa_offset -8",
            lambda: f"lea {self._data()},%{a}\n\tmov (%{a}),%{b}\n\tmov %{b},%{a}",
            lambda: f"mov ${number % 64},%{_half(a)}\n\tlea data(%rip),%{b}\n\txor %{a},(%{b},%{a},8)\n\tmov %{a},%{b}",
            lambda: self._string(),
            lambda: f"lea f{self.number}(%rip),%{a}\n\tlea invoke(%rip),%{b}\n\tsub %{b},%{a}\n\tmov %{a},%{b}",
        ]  # fmt: skip
        if self.locals_bytes:
            choices.append(lambda: f"{chance.choice(('add', 'mov', 'xor'))} {8 * chance.randrange(2)}(%rsp),%{a}")
        self._put(chance.choice(choices)())

    def _string(self) -> str:
        chance = self.chance
        if self.counter:
            return f"lea {self._data()},%rdi\n\tstosb\n\tmov %eax,%edi"
        moves = chance.choice(("rep movsb", "rep stosb", "repe cmpsb", "repne scasb", "rep movsq"))
        low, high = chance.randrange(300), 512 + chance.randrange(300)
        end = "xor %esi,%esi\n\txor %edi,%edi"
        begin = f"lea data+{low}(%rip),%rsi\n\tlea data+{high}(%rip),%rdi\n\tmov ${chance.randrange(24)},%ecx"
        return f"{begin}\n\t{moves}\n\t{end}"


def _half(register: str) -> str:
    return register + "d" if register[1:].isdigit() else "e" + register[1:]


def _low(register: str) -> str:
    if register[1:].isdigit():
        return register + "b"
    return register[1] + "l" if register.endswith("x") else register[1:] + "l"


def random_assembly(seed: int, functions: int = 24) -> str:
    """A shared library's source: f0, f1, ..., `invoke`, and the memory `data`, `calls`, `fuel`."""
    chance = random.Random(seed)
    popping: dict[int, int] = {}
    made = [_Function(chance, number, popping).write() for number in range(functions)]
    if chance.random() < 0.5:  # what a function calls may begin at its very end
        made.reverse()
    pointers = "\n".join(f"pointer{number}:\t.quad f{number}" for number in range(functions))
    start = "\n".join(f"\t.globl start{number}\nstart{number}:\t.quad f{number}" for number in range(functions))
    return HEAD + "".join(made) + f'\t.section .data.rel.ro,"aw"\n\t.balign 8\n{pointers}\n{start}\n' + TAIL
