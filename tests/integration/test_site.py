# SPDX-License-Identifier: Apache-2.0
"""The site of the documents works from files, with no network: index, search and diagrams, without a complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
SCREENSHOT_BYTES_MIN = 50_000  # an empty page has fewer
Browse = Callable[[str, str], str]

pytestmark = [pytest.mark.integration, pytest.mark.shared]


@pytest.fixture(scope="module")
def site() -> Path:
    if shutil.which("npm") is None and not (ROOT / "build" / "site-assets").exists():
        pytest.skip("npm is missing")
    pytest.importorskip("material", reason="the theme takes Python 3.11")
    done = subprocess.run([sys.executable, ROOT / "scripts" / "site"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return SITE


@pytest.fixture
def browse(site: Path, tmp_path: Path) -> Browse:
    """Opens a page in headless Chromium that reaches no host. Returns its document as scripts have left it."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is missing")

    def browse_(page: str, name: str) -> str:
        words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        words += [f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
        words += ["--enable-logging=stderr", "--virtual-time-budget=20000", "--window-size=1300,1600"]
        address = f"{site.as_uri()}/{page}"
        shot = tmp_path / f"{name}.png"
        seen = subprocess.run([*words, f"--screenshot={shot}", address], capture_output=True, text=True, timeout=200)
        assert shot.stat().st_size > SCREENSHOT_BYTES_MIN, seen.stderr
        done = subprocess.run([*words, "--dump-dom", address], capture_output=True, text=True, timeout=200)
        assert "CONSOLE" not in seen.stderr + done.stderr, done.stderr
        return done.stdout

    return browse_


def test_index(browse: Browse) -> None:
    document = browse("index.html", "index")
    assert "nfprobe report build/demo/firewall.nfprobe" in document
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="docs/{page.stem}.html"' in document


def test_search(browse: Browse) -> None:
    document = browse("index.html?q=trampoline", "search")
    assert re.search(r"\d+ matching documents", document)
    assert 'href="docs/strategies.html' in document.split('class="md-search-result__list"')[1]


def test_first_nf(browse: Browse) -> None:
    assert "what made the 1,005 packets over 56.0 ms late" in browse("docs/first-nf.html", "first-nf")


def test_diagrams_are_drawn(browse: Browse) -> None:
    document = browse("docs/how-it-works.html", "how-it-works")
    assert document.count('<div class="mermaid"') == 5
    assert '<pre class="mermaid"' not in document  # as the page has them before the script


def test_nothing_is_taken_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        taken = re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="((?:https?:)?//[^"]*)"', page.read_text())
        assert not taken, page


def test_manual_pages(site: Path) -> None:
    manual = (ROOT / "build" / "man" / "nfprobe-attach.1").read_text()
    assert manual.startswith(".TH NFPROBE\\-ATTACH 1")
