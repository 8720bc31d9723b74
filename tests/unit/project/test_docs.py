# SPDX-License-Identifier: Apache-2.0
"""What the documents show can be typed: every verb and option in them exists, and every link leads somewhere."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli import main as cli
from otel_nfprobe.cli.main import VERBS
from otel_nfprobe.export.delivery import RETRY_AFTER_MAX_S
from otel_nfprobe.metrics.httplistener import CONNECTIONS_MAX
from tests.support.doc_commands import lines_in_prose, lines_to_type

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


def read(line: str) -> str:
    """What the program's own parser says of a command line: nothing, or the sentence."""
    try:
        cli.parse(shlex.split(re.sub(r"\$\([^)]*\)|\$\w+|\$!|\bPID\b", "1", line))[1:])
    except UsageError as error:
        return error.sentence
    except SystemExit:  # --help, --version
        return ""
    return ""


def test_lines_to_type_are_understood() -> None:
    shown = list(lines_to_type())
    assert len(shown) > 40
    for page, line in shown:
        words = re.sub(r" > \S+$", "", line)
        assert read(words) == "", f"{page.name}: {line}"


@pytest.mark.thorough
def test_lines_in_prose_are_understood() -> None:
    """A part of a command may lack arguments, and a placeholder is no number; nothing in it may be unknown."""
    for page, line in lines_in_prose():
        words = re.sub(r"\.\.\.|[][]", "", line)
        verb = words.split()[1]
        assert verb in (*VERBS, "VERB", "--version"), f"{page.name}: {line}"
        if verb != "VERB":
            said = read(words)
            is_part = said.startswith("The following arguments are required") or "expected one argument" in said
            assert not said or is_part or re.search(r"'[A-Z]+' is not a", said), f"{page.name}: {line}: {said}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_make_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)`", page.read_text()):
            assert target in targets, f"{page.name}: make {target}"


def test_security_is_found_and_names_no_address() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "docs/limits.md"):
        assert "SECURITY.md" in (ROOT / page).read_text(), page
    text = " ".join((ROOT / "SECURITY.md").read_text().split())
    assert "@" not in text  # weaknesses are reported on the repository's page
    limits = " ".join((ROOT / "docs" / "limits.md").read_text().split())
    assert f"{CONNECTIONS_MAX} times at once" in limits
    assert f"{CONNECTIONS_MAX} clients at a time" in text
    for page in (text, limits):
        assert f"{RETRY_AFTER_MAX_S / 60:.0f} minutes of pause" in page


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", index))
    assert named == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}


def test_the_glossary_is_short() -> None:
    rows = re.findall(r"^\* \*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert 20 <= len(rows) <= 30


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_no_line_is_wide(page: Path) -> None:
    """Tables and the output of programs included."""
    assert not [line for line in page.read_text().splitlines() if len(line) > 120]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_options_are_as_the_parsers_have_them(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "option-pages"
    words = [sys.executable, script, "--check", "--man", tmp_path]
    assert subprocess.run(words, check=False).returncode == 0, f"run {script}"
    assert {path.stem for path in tmp_path.iterdir()} == {"nfprobe", *(f"nfprobe-{verb}" for verb in VERBS)}
    assert "\\-\\-functions GLOB" in (tmp_path / "nfprobe-attach.1").read_text()
    if groff := shutil.which("groff"):
        words = [groff, "-man", "-Tutf8", "-ww", "-z", *tmp_path.iterdir()]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stderr == ""
