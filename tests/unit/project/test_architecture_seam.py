# SPDX-License-Identifier: Apache-2.0
"""Nothing outside of otel_nfprobe/arch names a processor's registers, instructions or numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "otel_nfprobe"

PARTS = r"[re]?(?:ax|bx|cx|dx|si|di|sp|bp)|[re]ip|r(?:8|9|1[0-5])[dwb]?|[re]?flags|[xyz]mm\d*"
WORDS = (
    r"rdtscp?|rdpmc|cpuid|endbr64|int3|iced_x86|EM_X86_64|R_X86_64_\w+|Mnemonic|FlowControl|OpKind|KS_ARCH_\w+"
    r"|amd64|x86_64|X86_64|PUSH_RBP|__x64_\w*"
)
OPCODES = r'b"\\x(?:0f\\x05|c3|cc|e8|e9|eb|ff\\x25)|\b0x(?:CC|E8|E9|EB)\b'  # of jumps, calls, traps and returns
REGISTERS = rf"(?<![\w.])(?:{PARTS})(?!\w)"
UPPER = r"\b(?:R(?:AX|BX|CX|DX|SI|DI|SP|BP|IP|8|9|1[0-5])|E(?:AX|BX|CX|DX|FLAGS)|[XYZ]MM\d*)\b"
NAMED = re.compile(rf"\b(?:{WORDS})\b|{OPCODES}|{REGISTERS}|{UPPER}")
# Short words of Python and English that are also parts of registers.
ALLOWED_WORDS = frozenset(("ax", "bx", "cx", "dx", "si", "di", "sp", "bp", "flags"))

ALLOWED = {
    "base/processors.py": "the row of each processor",
    "cli/session_options.py": "the help of --capture, for people who write snippets",
    "counters/devices.py": "the picture of /sys",
    "elf/elfworker.py": "starts without the project's modules",
}


def find_named(text: str) -> list[tuple[int, str]]:
    """Line and word of each name of a processor's."""
    return [
        (number, found[0])
        for number, line in enumerate(text.splitlines(), 1)
        for found in NAMED.finditer(line)
        if found[0] not in ALLOWED_WORDS
    ]


def sources() -> dict[str, Path]:
    paths = (path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "arch")
    return {str(path.relative_to(PACKAGE)): path for path in paths}


def test_no_processor_is_named_outside_of_its_folder() -> None:
    found = [
        f"otel_nfprobe/{name}:{number}: {word}"
        for name, path in sorted(sources().items())
        if name not in ALLOWED
        for number, word in find_named(path.read_text())
    ]
    assert not found, "ask an Architecture (arch/architecture.py):\n" + "\n".join(found)


def test_the_exceptions_need_to_be_ones() -> None:
    assert {name for name, path in sources().items() if name in ALLOWED and find_named(path.read_text())} == {*ALLOWED}


def test_processors_are_asked_for_by_the_seam() -> None:
    importing = re.compile(r"otel_nfprobe\.arch(?:\.| import )(?:x86_64|aarch64)")
    assert not [name for name, path in sources().items() if importing.search(path.read_text())]


@pytest.mark.parametrize(
    "line",
    [
        "# the frame is in rdx",
        'SNIPPET = "movzx eax, si"',
        "from iced_x86 import Decoder",
        'code.ljust(64, b"\\xcc")',
        "JUMP = 0xE9",
        "before = (RSP, 8)",
        'if machine == "x86_64":',
        "the flags are in xmm0 or r11d",
    ],
)
def test_a_new_name_fails(line: str) -> None:
    assert find_named(line)
