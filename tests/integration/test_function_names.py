# SPDX-License-Identifier: Apache-2.0
"""`nfprobe functions`: names, kinds, signatures and inlined functions as a person and a program see them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.elf.symbols import find_functions
from otel_nfprobe.target.target import Target
from tests.support.probed import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("private_cache"), pytest.mark.shared]

LIBCRYPTO = next(Path("/usr/lib").glob("*/libcrypto.so.3"))
CONTRACT = {"module", "offset", "size", "name", "name_source", "strategy", "reason", "arguments", "returns"}
LIBRARY = """
static __attribute__((noipa)) int chosen(int a) { return a * 3 + 1; }
static __attribute__((noipa)) int other(int a) { return a * 5 + 1; }
static int (*choose(void))(int) { return chosen; }
int work(int) __attribute__((ifunc("choose")));
int (*keep)(int) = other;
"""
PROGRAM = """
#include <unistd.h>
int work(int);
int main(int count, char **words)
{
	(void)words;
	work(count);
	for (;;)
		pause();
}
"""
CPP = """
namespace net {
struct Ring { int v; int push(int x) const; };
static inline int squeeze(int x) { return x * x + 1; }
int Ring::push(int x) const { return v + squeeze(x); }
}
extern "C" __attribute__((visibility("default"))) int entry(int a, const char *b) { return net::squeeze(a) + b[0]; }
__asm__(".text\\n.globl bare\\n.type bare,@function\\nbare: mov %edi,%eax\\nadd $1,%eax\\nret\\n.size bare,.-bare");
"""


def _run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "a.cpp").write_text(CPP)
    _run("g++", "-g", "-O2", "-shared", "-fPIC", "-o", folder / "libcpp.so", folder / "a.cpp")
    return folder / "libcpp.so"


def test_a_slot_names_what_nothing_else_names(spawn: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(LIBRARY)
    (tmp_path / "b.c").write_text(PROGRAM)
    _run("gcc", "-shared", "-fPIC", "-O1", "-o", tmp_path / "full.so", tmp_path / "a.c")
    _run("strip", "-o", tmp_path / "libwork.so", tmp_path / "full.so")
    words = ["gcc", "-O1", "-Wl,-z,now", "-o", tmp_path / "b", tmp_path / "b.c", tmp_path / "libwork.so"]
    _run(*words, f"-Wl,-rpath,{tmp_path}")
    expected = {item.name: item.offset for item in find_functions(tmp_path / "full.so", ["*"])}
    process = spawn(tmp_path / "b")
    assert wait_until(lambda: "State:\tS" in Path(f"/proc/{process.pid}/status").read_text())
    found = find_functions(Target(process.pid), ["libwork:*"])
    by_offset = {item.offset: item for item in found}
    chosen, other = by_offset[expected["chosen"]], by_offset[expected["other"]]
    assert (chosen.name, chosen.name_source) == ("work", "slot")
    assert other.name_source == "offset"
    assert {item.kind for item in found if item.name == "work" and item is not chosen} == {"ifunc resolver"}


def test_json_says_what_each_function_is(nfprobe: Any, cpp: Path) -> None:
    found = nfprobe.json("functions", cpp)
    assert all(set(item) >= CONTRACT for item in found)
    by_name = {item["name"]: item for item in found}
    push = by_name["_ZNK3net4Ring4pushEi"]
    assert push["display_name"] == "net::Ring::push(int) const"
    assert (push["arguments"], push["returns"], push["signature"]["source"]) == (2, True, "dwarf")
    assert by_name["entry"]["signature"]["parameters"][1] == {"name": "b", "type": "const char *", "place": "rsi"}
    bare = by_name["bare"]
    assert (bare["strategy"], bare["reason"]) == (None, "no frame describes it")
    assert not any(item["name"].startswith(".plt") for item in found)


def test_the_table_says_where_names_are_from(nfprobe: Any, cpp: Path) -> None:
    done = nfprobe.run("functions", cpp)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["module", "offset", "size", "strategy", "name", "from", "reason"]
    assert any("net::Ring::push(int) const" in line and "dynsym" in line for line in lines)
    assert any("bare" in line and line.endswith("no frame describes it") for line in lines)
    assert "1 more have only a symbol and no frame" in done.stdout
    assert "PLT stubs are not listed" in done.stdout


def test_inlined_functions_are_listed(nfprobe: Any, cpp: Path) -> None:
    found = nfprobe.json("functions", cpp, "--inlined")
    assert {(item["display_name"], item["enclosing"]) for item in found} == {
        ("net::squeeze", "_ZNK3net4Ring4pushEi"),
        ("net::squeeze", "entry"),
    }
    assert {item["call_line"] for item in found} == {5, 7}
    done = nfprobe.run("functions", cpp, "--inlined", "--functions", "net::squeeze")
    assert "2 places where 1 functions were inlined" in done.stdout


def test_why_an_inlined_function_is_not_in_the_list(nfprobe: Any, cpp: Path) -> None:
    done = nfprobe.run("functions", cpp, "--functions", "net::squeeze")
    assert done.returncode == 2
    assert "is inlined into" in done.stderr
    assert f"next: nfprobe functions {cpp} --inlined --functions net::squeeze" in done.stderr


def test_without_debug_information_nothing_is_known_of_inlining(nfprobe: Any, cpp: Path, tmp_path: Path) -> None:
    _run("strip", "-o", tmp_path / "stripped.so", cpp)
    done = nfprobe.run("functions", tmp_path / "stripped.so", "--inlined")
    assert done.returncode == 2
    assert "no debug information" in done.stderr


def test_an_archive_names_functions(nfprobe: Any, tmp_path: Path) -> None:
    source = (
        "static __attribute__((noipa)) int hidden(int a) { return a * 7; }\nint shown(int a) { return hidden(a); }\n"
    )
    (tmp_path / "a.c").write_text(source)
    _run("gcc", "-O2", "-fPIC", "-c", "-o", tmp_path / "a.o", tmp_path / "a.c")
    _run("gcc", "-shared", "-s", "-o", tmp_path / "liba.so", tmp_path / "a.o")
    _run("ar", "rc", tmp_path / "liba.a", tmp_path / "a.o")
    names = {item["name"] for item in nfprobe.json("functions", tmp_path / "liba.so")}
    assert "hidden" not in names
    found = nfprobe.json("functions", tmp_path / "liba.so", "--archive", tmp_path / "liba.a")
    assert {item["name"]: item["name_source"] for item in found}["hidden"] == "archive"
    done = nfprobe.run("functions", tmp_path / "liba.so", "--archive", tmp_path / "absent.a")
    assert done.returncode == 2
    assert "absent.a" in done.stderr


def test_a_large_library_with_everything_inferred(nfprobe: Any) -> None:
    found = nfprobe.json("functions", LIBCRYPTO)
    assert len(found) > 8000
    by_name = {item["name"]: item for item in found}
    digest = by_name["EVP_Digest"]
    assert digest["arguments"] == 6
    assert digest["signature"]["source"] == "inferred"
    assert by_name["BIO_printf"]["signature"]["variadic"] is True
