# SPDX-License-Identifier: Apache-2.0
"""Names from every source: symbol tables, debug files, .gnu_debugdata, DWARF, static archives."""

from __future__ import annotations

import contextlib
import lzma
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.archive import archive_names, known_archives
from otel_nfprobe.elf.names.dwarf import open_dwarf
from otel_nfprobe.elf.symbols import (
    IFUNC_RESOLVER,
    NO_FRAME,
    Function,
    find_functions,
    functions_of,
    functions_without_frame,
    list_functions,
    use_archives,
)

pytestmark = pytest.mark.usefixtures("private_cache")

SOURCE = """
static __attribute__((noipa)) int hidden(int a) { return a * 7 + 1; }
static __attribute__((noipa)) int quiet(const char *text, long more) { return text[more] + hidden((int)more); }
static inline int folded_away(int a) { return a * a + 3; }
int visible(int a) { return hidden(a) + quiet("abc", a) + folded_away(a); }
int second(int a) { return folded_away(a + 1); }
"""
KINDS = """
int old_way(int a) { return a + 1; }
int new_way(int a) { return a + 2; }
__asm__(".symver old_way,way@V1");
__asm__(".symver new_way,way@@V2");
static int chosen(int a) { return a + 3; }
static int (*choose(void))(int) { return chosen; }
int picked(int) __attribute__((ifunc("choose")));
int apple(int a) { return a * 5; }
int pear(int) __attribute__((alias("apple")));
int _apple(int) __attribute__((alias("apple")));
__asm__(".text\\n.globl bare\\n.type bare,@function\\nbare: mov %edi,%eax\\nadd $1,%eax\\nret\\n.size bare,.-bare");
"""
CPP = """
namespace net { struct Ring { int v; __attribute__((noinline)) int push(int x) const; int pop(); }; }
int net::Ring::push(int x) const { return v + x; }
int net::Ring::pop() { return v--; }
template <class T> __attribute__((noinline)) T twice(T x) { return x + x; }
template int twice<int>(int);
template long twice<long>(long);
"""


def _run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library, its debug file, the library stripped, its object and an archive of that."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "a.c").write_text(SOURCE)
    _run("gcc", "-g", "-O2", "-fPIC", "-c", "-o", folder / "a.o", folder / "a.c")
    _run("gcc", "-shared", "-Wl,--build-id", "-o", folder / "liba.so", folder / "a.o")
    _run("objcopy", "--only-keep-debug", folder / "liba.so", folder / "liba.debug")
    _run("strip", "-o", folder / "stripped.so", folder / "liba.so")
    _run("ar", "rc", folder / "liba.a", folder / "a.o")
    return folder


def _module(path: Path, root: Path | None = None) -> Module:
    module = Module.from_file(path)
    if root is not None:
        module.cache["root"] = str(root)
    return module


def _sources(module: Module) -> dict[str, str]:
    return {function.name: function.name_source for function in functions_of(module)}


def _linked(built: Path, folder: Path) -> Path:
    """The stripped library with a link to its debug file, in a folder without that file."""
    shutil.copy(built / "liba.debug", folder / "liba.debug")
    shutil.copy(built / "stripped.so", folder / "liba.so")
    _run("objcopy", f"--add-gnu-debuglink={folder / 'liba.debug'}", folder / "liba.so")
    (folder / "liba.debug").unlink()
    return folder / "liba.so"


def test_a_debug_file_is_found_by_its_build_id(built: Path, tmp_path: Path) -> None:
    identity = Module.from_file(built / "liba.so").build_id
    place = tmp_path / "usr/lib/debug/.build-id" / identity[:2] / f"{identity[2:]}.debug"
    place.parent.mkdir(parents=True)
    shutil.copy(built / "liba.debug", place)
    sources = _sources(_module(built / "stripped.so", tmp_path))
    assert sources["hidden"] == sources["quiet"] == "debug file"
    assert sources["visible"] == "dynsym"


@pytest.mark.parametrize("place", ["liba.debug", ".debug/liba.debug"])
def test_a_debug_file_is_found_by_its_link(place: str, built: Path, tmp_path: Path) -> None:
    library = _linked(built, tmp_path)
    assert "hidden" not in _sources(_module(library))
    (tmp_path / place).parent.mkdir(exist_ok=True)
    shutil.copy(built / "liba.debug", tmp_path / place)
    assert _sources(_module(library))["hidden"] == "debug file"


def test_a_debug_file_is_found_under_the_targets_root(built: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    library = _linked(built, tmp_path / "lib")
    module = _module(library, tmp_path / "root")
    place = Path(f"{tmp_path}/root/usr/lib/debug{tmp_path}/lib/liba.debug")
    place.parent.mkdir(parents=True)
    shutil.copy(built / "liba.debug", place)
    assert _sources(module)["hidden"] == "debug file"


def test_a_changed_debug_file_is_refused(built: Path, tmp_path: Path) -> None:
    library = _linked(built, tmp_path)
    (tmp_path / "liba.debug").write_bytes((built / "liba.debug").read_bytes() + b"\0")
    module = _module(library)
    assert "hidden" not in _sources(module)
    assert "checksum" in module.cache["notes"][0]


def test_a_debug_file_of_another_build_is_refused(built: Path, tmp_path: Path) -> None:
    (tmp_path / "b.c").write_text(SOURCE + "int third(void) { return 3; }\n")
    _run("gcc", "-g", "-O2", "-shared", "-fPIC", "-Wl,--build-id", "-o", tmp_path / "libb.so", tmp_path / "b.c")
    identity = Module.from_file(built / "liba.so").build_id
    place = tmp_path / "usr/lib/debug/.build-id" / identity[:2] / f"{identity[2:]}.debug"
    place.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "libb.so", place)
    module = _module(built / "stripped.so", tmp_path)
    assert "hidden" not in _sources(module)
    assert "another build" in module.cache["notes"][0]


def test_a_pipe_in_the_place_of_a_debug_file_does_not_block(built: Path, tmp_path: Path) -> None:
    identity = Module.from_file(built / "liba.so").build_id
    place = tmp_path / "usr/lib/debug/.build-id" / identity[:2] / f"{identity[2:]}.debug"
    place.parent.mkdir(parents=True)
    _run("mkfifo", place)
    assert "hidden" not in _sources(_module(built / "stripped.so", tmp_path))


def test_no_debug_file_is_opened_without_need(built: Path) -> None:
    module = _module(built / "liba.so")
    assert _sources(module)["hidden"] == "symtab"
    assert "debug file" not in module.cache
    assert "dwarf" not in module.cache


def test_only_modules_that_are_looked_at_pay_for_names(built: Path) -> None:
    modules = [Module.from_file(built / "stripped.so"), Module.from_file(built / "liba.so")]
    find_functions(modules, ["liba:visible"])
    assert "names" not in modules[0].cache
    assert "names" in modules[1].cache


@pytest.fixture(scope="module")
def mini(built: Path) -> Path:
    """As Fedora makes it: the symbols that .dynsym has not, stripped of everything else, packed."""
    (built / "keep").write_text("hidden\nquiet\n")
    _run("objcopy", "-S", f"--keep-symbols={built / 'keep'}", built / "liba.debug", built / "mini")
    (built / "mini.xz").write_bytes(lzma.compress((built / "mini").read_bytes()))
    output = built / "mini.so"
    _run("objcopy", f"--add-section=.gnu_debugdata={built / 'mini.xz'}", built / "stripped.so", output)
    return output


def test_names_of_a_packed_symbol_table(mini: Path) -> None:
    sources = _sources(_module(mini))
    assert sources["hidden"] == sources["quiet"] == "debugdata"
    assert sources["visible"] == "dynsym"


def test_a_damaged_packed_symbol_table_is_noted(mini: Path, tmp_path: Path) -> None:
    content = mini.read_bytes()
    place = content.index(b"\xfd7zXZ\0")
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(content[: place + 40] + bytes(40) + content[place + 80 :])
    module = _module(damaged)
    assert "hidden" not in _sources(module)
    assert ".gnu_debugdata" in module.cache["notes"][0]


def test_names_that_only_dwarf_has(built: Path, tmp_path: Path) -> None:
    output = tmp_path / "dwarf.so"
    _run("objcopy", "--strip-symbol=hidden", built / "liba.so", output)
    sources = _sources(_module(output))
    assert sources["hidden"] == "dwarf"
    assert sources["quiet"] == "symtab"


def test_names_of_an_archive_with_the_same_code(built: Path) -> None:
    module = _module(built / "stripped.so")
    use_archives(module, [built / "liba.a"])
    expected = {function.name: function.offset for function in functions_of(_module(built / "liba.so"))}
    found = {function.name: function for function in functions_of(module)}
    assert found["hidden"].name_source == found["quiet"].name_source == "archive"
    assert found["hidden"].offset == expected["hidden"]
    assert found["quiet"].offset == expected["quiet"]


def test_functions_with_equal_code_are_told_apart_by_their_place(tmp_path: Path) -> None:
    lines = [f"static __attribute__((noinline,noclone)) int twin{n}(int a) {{ return a + 5; }}" for n in range(4)]
    lines += [f"int caller{n}(int a) {{ return twin{n}(a) * {n + 3}; }}" for n in range(4)]
    (tmp_path / "a.c").write_text("\n".join(lines))
    flags = ("-O2", "-fPIC", "-fno-ipa-icf", "-fno-ipa-ra")
    _run("gcc", *flags, "-c", "-o", tmp_path / "a.o", tmp_path / "a.c")
    _run("gcc", "-shared", "-o", tmp_path / "full.so", tmp_path / "a.o")
    _run("strip", "-o", tmp_path / "stripped.so", tmp_path / "full.so")
    _run("ar", "rc", tmp_path / "a.a", tmp_path / "a.o")
    module = _module(tmp_path / "stripped.so")
    use_archives(module, [tmp_path / "a.a"])
    expected = {item.offset: item.name for item in functions_of(_module(tmp_path / "full.so"))}
    named = {item.offset: item.name for item in functions_of(module) if item.name_source == "archive"}
    assert sorted(named.values()) == [f"twin{n}" for n in range(4)]
    assert all(expected[offset] == name for offset, name in named.items())


def test_an_archive_of_other_code_names_nothing(built: Path, tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(SOURCE)
    _run("gcc", "-O0", "-c", "-o", tmp_path / "a.o", tmp_path / "a.c")
    _run("ar", "rc", tmp_path / "a.a", tmp_path / "a.o")
    module = _module(built / "stripped.so")
    use_archives(module, [tmp_path / "a.a"])
    assert "archive" not in _sources(module).values()


@pytest.mark.parametrize(
    "content", [None, b"", b"!<arch>\nnot an archive, really: no member header follows here......"]
)
def test_what_is_no_archive_is_said(content: bytes | None, built: Path, tmp_path: Path) -> None:
    path = tmp_path / "lib.a"
    if content is not None:
        path.write_bytes(content)
    module = _module(built / "stripped.so")
    use_archives(module, [path])
    with pytest.raises(UsageError, match=r"lib\.a cannot be"):
        functions_of(module)


def test_archives_of_dpdk_agree_with_its_symbols() -> None:
    names = ("eal", "ethdev", "mempool", "mbuf", "hash", "pipeline", "table", "net_ring", "net_tap")
    folder = Path("/usr/lib/x86_64-linux-gnu")
    libraries = [path for name in names for path in folder.glob(f"librte_{name}.so.2?")]
    checked = disagreed = named = 0
    for path in libraries:
        module = Module.from_file(path)
        archives = known_archives(module)
        if not archives:
            pytest.skip("libdpdk-dev is not installed: scripts/set-up test")
        known: dict[int, set[str]] = {}
        for symbol in module.image.symbols:
            known.setdefault(symbol.address, set()).add(symbol.name)
        spans = [(frame.start, frame.size) for frame in module.image.frames.frames]
        found = archive_names(module, spans, {}, archives)
        checked += sum(start in known for start in found)
        disagreed += sum(start in known and name not in known[start] for start, name in found.items())
        named += sum(start not in known for start in found)
    if not libraries:
        pytest.skip("dpdk is not installed: scripts/set-up test")
    assert disagreed == 0
    assert checked > 100
    assert named > 100


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> list[Function]:
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "a.c").write_text(KINDS)
    (folder / "map").write_text(
        "V1 { global: way; picked; apple; pear; _apple; bare; local: *; };\nV2 { global: way; } V1;"
    )
    script = f"-Wl,--version-script={folder / 'map'}"
    _run("gcc", "-O2", "-shared", "-fPIC", script, "-o", folder / "libkinds.so", folder / "a.c")
    return functions_of(Module.from_file(folder / "libkinds.so"))


def test_versions_are_shown(kinds: list[Function]) -> None:
    assert {item.version for item in kinds if item.name == "way"} == {"@V1", "@@V2"}
    module = kinds[0].module
    (found,) = find_functions(module, ["way@V1"])
    assert found.version == "@V1"
    assert len(find_functions(module, ["way"])) == 2


def test_ifuncs_are_shown_as_resolvers(kinds: list[Function]) -> None:
    assert {item.name for item in kinds if item.kind == IFUNC_RESOLVER} == {"picked"}


def test_names_that_differ_are_shown_as_folded(kinds: list[Function]) -> None:
    apple = next(item for item in kinds if "apple" in item.aliases)
    assert set(apple.aliases) == {"apple", "pear", "_apple"}
    assert apple.is_folded
    assert {item.name for item in kinds if item.is_folded} == {apple.name, "picked"}


def test_functions_that_no_frame_describes(kinds: list[Function]) -> None:
    module = kinds[0].module
    (bare,) = functions_without_frame(module)
    assert (bare.name, bare.reason, bare.size) == ("bare", NO_FRAME, 6)
    assert list_functions(module, ["bare"]) == ([], [bare])
    with pytest.raises(UsageError, match="bare cannot be probed: no frame describes it"):
        find_functions(module, ["bare"])


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> Module:
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "a.cpp").write_text(CPP)
    _run("g++", "-O2", "-shared", "-fPIC", "-o", folder / "libcpp.so", folder / "a.cpp")
    return Module.from_file(folder / "libcpp.so")


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("net::Ring::push", {"_ZNK3net4Ring4pushEi"}),
        ("libcpp:net::Ring::*", {"_ZNK3net4Ring4pushEi", "_ZN3net4Ring3popEv"}),
        ("net::Ring::push(int) const", {"_ZNK3net4Ring4pushEi"}),
        ("_ZNK3net4Ring4push*", {"_ZNK3net4Ring4pushEi"}),
        ("twice<*>", {"_Z5twiceIiET_S0_", "_Z5twiceIlET_S0_"}),
        ("long twice<long>(long)", {"_Z5twiceIlET_S0_"}),
    ],
)
def test_globs_of_demangled_names(glob: str, names: set[str], cpp: Module) -> None:
    assert {function.name for function in find_functions(cpp, [glob])} == names


def test_display_names(cpp: Module) -> None:
    shown = {function.name: function.display_name for function in functions_of(cpp)}
    assert shown["_ZNK3net4Ring4pushEi"] == "net::Ring::push(int) const"


def test_an_inlined_function_is_named_with_those_that_it_is_in(built: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        find_functions(built / "liba.so", ["folded_away"])
    assert "folded_away is inlined into" in refusal.value.sentence
    assert "liba.so:visible" in refusal.value.sentence
    assert "liba.so:second" in refusal.value.sentence
    assert refusal.value.next_command.endswith("--inlined --functions folded_away")


def test_damaged_files_are_noted_and_never_raise_what_they_should_not(built: Path, mini: Path, tmp_path: Path) -> None:
    identity = Module.from_file(built / "liba.so").build_id
    place = tmp_path / "usr/lib/debug/.build-id" / identity[:2] / f"{identity[2:]}.debug"
    place.parent.mkdir(parents=True)
    randomly = random.Random(3)

    def damage(content: bytes) -> bytes:
        changed = bytearray(content)
        for _ in range(randomly.randrange(1, 30)):
            changed[randomly.randrange(len(changed))] = randomly.randrange(256)
        return bytes(changed[: randomly.randrange(len(changed))] if randomly.random() < 0.1 else changed)

    makers: list[Callable[[], Module]] = [
        lambda: _module(built / "stripped.so", tmp_path),
        lambda: _module(mini, tmp_path),
    ]
    for number in range(120):
        place.write_bytes(damage((built / "liba.debug").read_bytes()))
        module = makers[number % 2]()
        archive = tmp_path / f"{number}.a"
        archive.write_bytes(damage((built / "liba.a").read_bytes()))
        use_archives(module, [archive])
        with contextlib.suppress(NfprobeError):
            functions_of(module)
        dwarf = open_dwarf(module)
        if dwarf is not None:
            dwarf.contents()
