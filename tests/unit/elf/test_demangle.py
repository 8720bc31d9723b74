# SPDX-License-Identifier: Apache-2.0
"""Demangled names, beside those of binutils' c++filt."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from otel_nfprobe.elf import elfparser
from otel_nfprobe.elf.elfparser import ElfParser
from otel_nfprobe.elf.names import demangle as demangling
from otel_nfprobe.elf.names.demangle import demangle, demangle_all, demangle_rust, short_name

LIBSTDCPP = next(Path("/usr/lib").glob("*/libstdc++.so.6"))
RUST = """
use std::fmt::Debug;
trait Shape { fn area(&self) -> f64; }
struct Square<const N: usize>(f64);
impl<const N: usize> Shape for Square<N> { #[inline(never)] fn area(&self) -> f64 { self.0 * N as f64 } }
#[inline(never)] fn apply<F: Fn(&str) -> usize>(f: F, s: &str) -> usize { f(s) }
#[inline(never)] fn mixed(s: &dyn Shape, t: &mut [u8], v: Box<dyn Fn(i32) -> i32 + Send>, q: fn(u8) -> bool) -> f64 {
    t[0] = 1; v(3); q(2); s.area() }
#[inline(never)] fn show<T: Debug, U>(t: T, _u: U) -> String { format!("{:?}", t) }
fn main() {
    let s = Square::<7>(2.0);
    println!("{}", mixed(&s, &mut [0u8; 4], Box::new(|x| x + 1), |x| x > 1));
    println!("{} {}", show::<(u8,), &dyn Shape>((1,), &s), show(&"e", [-3i8; 2]));
    println!("{}", apply(|x| x.len(), "abc"));
}
"""
LEGACY = {
    "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE": "core::fmt::Write::write_fmt",
    "_ZN46_$LT$a..Square$u20$as$u20$a..Shape$GT$4area17h0123456789abcdefE": None,
    "_ZN34_$LT$a..Sq$u20$as$u20$a..Shape$GT$4area17h0123456789abcdefE": "<a::Sq as a::Shape>::area",
    "_ZN1a4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE.llvm.123": "a::main::{{closure}}",
}


def _names(path: Path, *options: str) -> list[str]:
    text = subprocess.run(["nm", *options, str(path)], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1].split("@")[0] for line in text.splitlines() if line.strip()}
    return sorted(name for name in names if name.startswith(("_Z", "_R")))


def _filtered(names: list[str]) -> list[str]:
    done = subprocess.run(
        ["c++filt", "--no-verbose"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_cpp_names_are_those_of_binutils() -> None:
    names = _names(LIBSTDCPP, "-D")
    assert len(names) > 3000
    demangle_all(names)
    assert [demangle(name) for name in names] == _filtered(names)


def _bomb(levels: int) -> str:
    """A function whose argument is a function that takes two such arguments, and so on."""
    digits, last, name = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", 1, "_Z1fPFviE"
    for _ in range(levels):
        number = last - 1
        text = digits[number] if number < 36 else digits[number // 36] + digits[number % 36]
        name += f"PFvS{text}_S{text}_E"
        last += 2
    return name


@pytest.mark.thorough
def test_a_short_name_that_stands_for_endless_text_stays_and_takes_no_memory_here() -> None:
    small = _bomb(3)
    assert demangle(small).startswith("f(void (*)(int), ")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    endless = _bomb(40)
    assert len(endless) < 500
    assert demangle(endless) == endless
    assert demangle(_bomb(16)) == _bomb(16)  # three million characters
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert demangle("_Z1gv") == "g()"


def test_many_names_are_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = ElfParser.ask
    monkeypatch.setattr(ElfParser, "ask", lambda *arguments: asked.append(1) or ask(*arguments))
    names = [f"_Z{len(name)}{name}v" for name in (f"some_function_{number}" for number in range(5000))]
    demangle_all([*names, *names, "main", "_RNvC1a4main"])
    assert [demangle(name) for name in names] == [f"some_function_{number}()" for number in range(5000)]
    assert len(asked) == 1


def test_names_that_nobody_can_demangle_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elfparser, "parser", ElfParser(["/bin/false"]))
    monkeypatch.setattr(demangling, "_cpp_names", demangling._CppNames())
    assert [demangle(f"_Z1{letter}v") for letter in "abcdefgh"] == [f"_Z1{letter}v" for letter in "abcdefgh"]


@pytest.fixture(scope="module")
def rust_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rustc = shutil.which("rustc")
    if rustc is None:
        pytest.skip("rustc is not installed")
    folder = tmp_path_factory.mktemp("rust")
    (folder / "a.rs").write_text(RUST)
    words = [rustc, "-O", "-C", "symbol-mangling-version=v0", "-o", str(folder / "a"), str(folder / "a.rs")]
    subprocess.run(words, check=True)
    return folder / "a"


def test_rust_names_are_those_of_binutils(rust_program: Path) -> None:
    names = [name for name in _names(rust_program) if name.startswith("_R")]
    assert len(names) > 100
    expected = _filtered(names)
    assert [demangle(name) for name in names] == expected
    assert "<a::Square<7> as a::Shape>::area" in expected


@pytest.mark.parametrize("name", LEGACY)
def test_legacy_rust_names(name: str) -> None:
    assert demangle_rust(name) == LEGACY[name]


def test_what_is_no_mangled_name_stays() -> None:
    for name in ("main", "_ZZZ", "_R", "_RNvC", "_Z", "_ZN3foo", "", "_RNvNvNvNvNvB_", "_RB_", "_RIB_E", "__Z"):
        assert demangle(name) == name
    assert demangle("_Z" + "N" * 5000) == "_Z" + "N" * 5000


def test_random_rust_names_never_raise() -> None:
    randomly = random.Random(5)
    alphabet = "CNMXYIBELKRQPOASTFDGpsuvjnhe_0123456789abxZ"
    seed = "RINvNtCs1234_7mycrate3foo3barRShNtB5_3BazE"
    for _ in range(3000):
        text = list(seed)
        for _ in range(randomly.randrange(1, 8)):
            text[randomly.randrange(len(text))] = randomly.choice(alphabet)
        found = demangle_rust("_" + "".join(text))
        assert found is None or len(found) < 1 << 16


@pytest.mark.parametrize(
    ("shown", "short"),
    [
        ("net::Ring<std::string, 4>::push(std::string, std::function<void (int)>)", "net::Ring<std::string, 4>::push"),
        ("int a::f(char) const", "a::f"),
        ("net::(anonymous namespace)::hidden(char const*)", "net::(anonymous namespace)::hidden"),
        ("C::operator bool() const", "C::operator bool"),
        ("std::ostream& std::operator<< <char>(std::ostream&, char const*)", "std::operator<< <char>"),
        ("a::{lambda(int)#1}::operator()(int) const", "a::{lambda(int)#1}::operator()"),
        ("foo() [clone .cold]", "foo"),
        ("<a::Square<7> as a::Shape>::area", "<a::Square<7> as a::Shape>::area"),
    ],
)
def test_short_names(shown: str, short: str) -> None:
    assert short_name(shown) == short
