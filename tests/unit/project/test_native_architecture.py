# SPDX-License-Identifier: Apache-2.0
"""What is native knows its processor in folders called arch only, and compiles for another one with its folders."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
KINDS = (".c", ".h", ".S", ".inc", ".lds", ".py", ".txt", ".cmake")
WORDS = (
    # registers and what the kernel's structures call them
    r"%?[re](?:ax|bx|cx|dx|si|di|bp|sp|ip)|r(?:8|9|1[0-5])[dwb]?|[re]flags|(?:orig|ORIG)_[re]ax|[xyz]mm\d*|[fg]s_base|%[fg]s",
    r"user_(?:regs|fpregs)_struct|gregs|REG_\w+|PTRACE_[GS]ETREGS|NT_X86_\w+|_ULx86_64\w*",
    # instructions, how they are written in C and what their first bytes are
    r"rdtscp?|rdpmc|cpuid|int3|INT3|endbr(?:64|32)?|xadd\w*|cmpxchg\w*|prefetchw|rep stos\w*|jmp|movabs|"
    r"[lm]fence|_mm\w+|__builtin_ia32\w*|__rdtsc|__get_cpuid|\w*intrin\.h",
    r"0x[cC][cC]|0x[cC]3|0x[eE][89bB]|0x0f(?:05|1f)\w*",
    r"-m(?:no-)?red-zone|-fcf-protection\S*|-mstringop\S*|red zone",
    # the processor itself
    r"__x86_64\w*|__amd64\w*|__aarch64\w*|x86(?:[_-]64)?|[aA]arch64|arm64|AMD64|TSC|tsc|(?:EM|R|AUDIT_ARCH)_X86_64\w*",
)
WORD = re.compile(rf"(?<![\w\\])(?:{'|'.join(WORDS)})(?!\w)")
ASSEMBLY = re.compile(
    r'\basm\b|__asm__(?! volatile\(""\s*:)'
)  # one without an instruction only keeps the compiler in order
# An identifier of DWARF, of IPsec, of PCI.
OTHER_MEANINGS = {("native/core/otlp_packet.c", "esp")}


def test_only_arch_names_registers_and_instructions() -> None:
    files = [
        path
        for path in sorted((ROOT / "native").rglob("*"))
        if (path.suffix in KINDS or path.name == "Makefile") and "arch" not in path.parts
    ]
    assert len(files) > 150
    found = []
    for path in files:
        name = str(path.relative_to(ROOT))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = [match[0] for match in [*WORD.finditer(line), *ASSEMBLY.finditer(line)]]
            found += [f"{name}:{number}: {word}" for word in words if (name, word) not in OTHER_MEANINGS]
    assert not found, "these belong into a folder arch/:\n" + "\n".join(found)


def test_each_processor_has_the_same_folders() -> None:
    places = {
        path.parent: {each.name for each in path.parent.iterdir() if each.is_dir()}
        for path in (ROOT / "native").rglob("arch/arch.h")
    }
    assert len(places) == 3
    assert set(map(frozenset, places.values())) == {frozenset({"x86_64", "aarch64"})}


@pytest.mark.thorough
def test_it_compiles_for_another_processor() -> None:
    if not shutil.which("aarch64-linux-gnu-gcc"):
        pytest.skip("aarch64-linux-gnu-gcc is missing: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
    made = subprocess.run(["make", "-C", str(ROOT), "cross"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
