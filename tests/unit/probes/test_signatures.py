# SPDX-License-Identifier: Apache-2.0
"""Arguments and results, from debug information and from code alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from otel_nfprobe.arch.x86_64.dataflow import infer
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import functions_of
from otel_nfprobe.probes.signatures import FROM_CODE, FROM_DWARF, Signature, signatures_of

pytestmark = pytest.mark.usefixtures("private_cache")

LIBC = next(Path("/lib").glob("*/libc.so.6"))
SOURCE = """
#include <stdarg.h>
struct pair { long one, two; };
int none(void) { return 4; }
int two(int a, const char *b) { return a + b[0]; }
void store(int *where, int value) { *where = value; }
double mixed(double x, int a, float y) { return x * a + y; }
long six(long a, long b, long c, long d, long e, long f) { return a + b * c - d * e + f; }
long eight(long a, long b, long c, long d, long e, long f, long g, long h) { return a + b * c - d * e + f + g * h; }
int many(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	int sum = format[0];
	for (int i = 0; i < format[1]; i++)
		sum += va_arg(list, int);
	va_end(list);
	return sum;
}
struct pair *pointer(struct pair *p, unsigned char skipped, long used) { p->one = used; return p; }
long conditional(long a, long b) { if (a > 3) return b * 2; return a; }
"""
# name: arguments, returns, what is at least seen in the code
EXPECTED = {
    "none": (0, True, 0),
    "two": (2, True, 2),
    "store": (2, False, 2),
    "mixed": (3, True, 3),
    "six": (6, True, 6),
    "eight": (8, True, 6),
    "many": (1, True, 1),
    "pointer": (3, True, 3),
    "conditional": (2, True, 2),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signatures")
    (folder / "a.c").write_text(SOURCE)
    words = ["gcc", "-g", "-O2", "-shared", "-fPIC", "-o", str(folder / "full.so"), str(folder / "a.c")]
    subprocess.run(words, check=True)
    subprocess.run(["strip", "-o", str(folder / "stripped.so"), str(folder / "full.so")], check=True)
    return folder


def _signatures(path: Path) -> dict[str, Signature]:
    found = signatures_of(functions_of(Module.from_file(path)))
    return {function.name: signature for function, signature in found.items() if function.name in EXPECTED}


def test_debug_information_says_everything(built: Path) -> None:
    found = _signatures(built / "full.so")
    assert {name: (item.arguments, item.returns) for name, item in found.items()} == {
        name: (arguments, returns) for name, (arguments, returns, _) in EXPECTED.items()
    }
    assert {item.source for item in found.values()} == {FROM_DWARF}
    assert [name for name, item in found.items() if item.is_variadic] == ["many"]
    assert [tuple(item) for item in found["two"].parameters] == [("a", "int", "rdi"), ("b", "const char *", "rsi")]
    assert [item.place for item in found["mixed"].parameters] == ["xmm0", "rdi", "xmm1"]
    assert [item.place for item in found["eight"].parameters][6:] == ["stack", "stack"]
    assert found["pointer"].return_type == "struct pair *"
    assert found["pointer"].as_json()["parameters"][1] == {"name": "skipped", "type": "unsigned char", "place": "rsi"}


def test_code_says_the_least(built: Path) -> None:
    found = _signatures(built / "stripped.so")
    assert {name: item.arguments for name, item in found.items()} == {
        name: least for name, (_, _, least) in EXPECTED.items()
    }
    assert {item.source for item in found.values()} == {FROM_CODE}
    assert [name for name, item in found.items() if item.is_variadic] == ["many"]
    for name, (_, returns, _) in EXPECTED.items():
        assert found[name].returns in (returns, None), name


def test_signatures_are_kept(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _signatures(built / "stripped.so")
    monkeypatch.setattr("otel_nfprobe.probes.signatures.of_image", None)  # it would be called
    assert _signatures(built / "stripped.so") == before


def test_all_of_the_c_library_can_be_looked_at() -> None:
    module = Module.from_file(LIBC)
    functions = [item for item in functions_of(module) if item.exported][::3]
    found = {item.name: infer(module.image, item.offset, item.size) for item in functions}
    assert all(0 <= item.arguments <= 14 for item in found.values())


@pytest.mark.parametrize(
    ("name", "arguments", "returns", "variadic"),
    [("fgets", 3, True, False), ("printf", 1, None, True), ("memchr", None, None, False), ("fseek", 3, None, False)],
)
def test_known_functions_of_the_c_library(name: str, arguments: int | None, returns: bool, variadic: bool) -> None:
    module = Module.from_file(LIBC)
    function = next(item for item in functions_of(module) if name in item.aliases)
    found = infer(module.image, function.offset, function.size)
    assert found.is_variadic == variadic
    if arguments is not None:
        assert found.arguments == arguments
    assert found.returns in (True, None)
