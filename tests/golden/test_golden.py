# SPDX-License-Identifier: Apache-2.0
"""What nfprobe puts out, byte by byte: reports, tables, pages, spans, help texts, functions and code that it writes.

Nothing here knows in which module something is done: a change that only moves code changes no byte. What must vary is
left out in one place (`_steady`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from google.protobuf import text_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.golden.pinned import check, compare, is_pinning
from tests.golden.seeded import RECORDINGS, fill_templates

VERBS = ["attach", "run", "agent", "detach", "status", "top", "functions", "doctor", "counters"]
VERBS += ["stats", "report", "why", "diff", "tables", "query", "ids", "export"]
SPANS_SHOWN = 12
# What reads a recording, by the name of the file that it is pinned in.
READERS = {
    "report.txt": ["report"],
    "report.json": ["report", "--json", "--timelines"],
    "slow.json": ["report", "--json", "--slowest", "40", "--flow", "host 10.0.0.3"],
    "samples.folded": ["report", "--format", "flame"],
    "times.folded": ["report", "--format", "flame", "--by", "time", "--class", "slow"],
}
EXPORTS = {
    "spans": [],
    "links": ["--spans", "links", "--time-scale", "1000"],
    "slowest": ["--slowest", "1%", "--sample", "2%", "--correlate"],
}
# Files of Debian whose functions are pinned by their build ids: another build has other ones.
DEBIAN = ["/usr/lib/x86_64-linux-gnu/libz.so.1", "/usr/bin/mosquitto_pub"]
SELF_MADE = """
	.text
	.globl leaf, caller, looping
	.type leaf, @function
leaf:
.Lleaf:	.cfi_startproc
	lea (%rdi,%rsi), %rax
	add $1, %rax
	ret
	.cfi_endproc
	.size leaf, .-leaf
	.p2align 4
	.type caller, @function
caller:	.cfi_startproc
	push %rbx
	.cfi_def_cfa_offset 16
	mov %rdi, %rbx
	call .Lleaf
	add %rbx, %rax
	pop %rbx
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size caller, .-caller
	.p2align 4
	.type looping, @function
looping: .cfi_startproc
1:	dec %rdi
	jnz 1b
	ret
	.cfi_endproc
	.size looping, .-looping
	.type tiny, @function
tiny:	.cfi_startproc
	ret
	.cfi_endproc
	.size tiny, .-tiny
	.section .note.GNU-stack, "", @progbits
"""


def _steady(text: str) -> str:
    """Without what varies: the release of nfprobe, and how Python's releases write options that take a value."""
    text = re.sub(r"\b(nfprobe|version\"?:?) ?\"?\d+\.\d+\.\d+[0-9a-z.+]*", r"\1 VERSION", text)
    return re.sub(r"(-\w) (\S+), (--[\w-]+) \2", r"\1, \3 \2", text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With all recordings: commands run there, so that no path is in what they say."""
    made = tmp_path_factory.mktemp("golden")
    for name, write in RECORDINGS.items():
        write(made / f"{name}.nfprobe")
    return made


@pytest.fixture
def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "NFPROBE_"))}
    return kept | {"COLUMNS": "100", "LINES": "40", "NO_COLOR": "1"}


def run(folder: Path, environment: dict[str, str], *arguments: object) -> str:
    """What a command says, errors after that; its status at the end, unless it is 0."""
    words = [sys.executable, "-m", "otel_nfprobe", *map(str, arguments)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return _steady(done.stdout + done.stderr + (f"status {done.returncode}\n" if done.returncode else ""))


def readable(said: str) -> str:
    """With JSON a member on a line, so that a diff shows what changed."""
    try:
        return json.dumps(json.loads(said), indent=1, ensure_ascii=False) + "\n"
    except ValueError:
        return said


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("name", READERS)
def test_reports(recording: str, name: str, folder: Path, environment: dict[str, str]) -> None:
    verb, *options = READERS[name]
    said = run(folder, environment, verb, f"{recording}.nfprobe", *options)
    check(f"{recording}/{name}", readable(said) if name.endswith(".json") else said)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_pages(recording: str, folder: Path, environment: dict[str, str]) -> None:
    run(folder, environment, "report", f"{recording}.nfprobe", "-o", f"{recording}.html")
    check(f"{recording}/report.html", _steady((folder / f"{recording}.html").read_text()))


@pytest.mark.parametrize("name", ["diff.txt", "diff.json"])
def test_differences(name: str, folder: Path, environment: dict[str, str]) -> None:
    said = run(folder, environment, "diff", "one-thread.nfprobe", "two-threads.nfprobe", *["--json"] * ("json" in name))
    check(name, readable(said) if name.endswith(".json") else said)


@pytest.mark.parametrize(
    ("name", "sql"),
    [
        ("packets.txt", "SELECT * FROM packets ORDER BY 1, 2, 3 LIMIT 40"),
        ("calls.txt", "SELECT * FROM calls ORDER BY 1, 2, 3 LIMIT 40"),
        ("batches.txt", "SELECT * FROM batches ORDER BY 1, 2, 3 LIMIT 40"),
    ],
)
def test_rows_of_tables(name: str, sql: str, folder: Path, environment: dict[str, str]) -> None:
    check(f"tables/{name}", run(folder, environment | {"COLUMNS": "1000"}, "query", sql, "two-threads.nfprobe"))


class Receiver:
    """Takes OTLP requests by HTTP."""

    def __init__(self) -> None:
        receiver = self
        self.requests: list[bytes] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.requests.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def describe(requests: list[bytes]) -> str:
    """A hash of each request's bytes, and the first spans as text. Which worker sends first is not told."""
    lines, shown = [], 0
    for data in sorted(requests):
        lines.append(f"# {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}\n")
        for part in ExportTraceServiceRequest.FromString(data).resource_spans:
            lines += [f"# {text_format.MessageToString(part.resource, as_one_line=True)}\n"] if not shown else []
            spans = [span for scope in part.scope_spans for span in scope.spans][: SPANS_SHOWN - shown]
            lines += [text_format.MessageToString(span) + "\n" for span in spans]
            shown += len(spans)
    return "".join(lines)


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("name", EXPORTS)
def test_spans(recording: str, name: str, folder: Path, environment: dict[str, str], receiver: Receiver) -> None:
    more = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    own = ["--endpoint", receiver.url, *EXPORTS[name]]
    said = run(folder, environment | more, "export", f"{recording}.nfprobe", *own)
    assert receiver.requests, said
    check(f"{recording}/{name}.otlp", describe(receiver.requests))


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help(verb: str, folder: Path, environment: dict[str, str]) -> None:
    check(f"help/{verb or 'nfprobe'}.txt", run(folder, environment, *verb.split(), "--help"))


def test_every_verb_has_its_help_pinned(folder: Path, environment: dict[str, str]) -> None:
    said = run(folder, environment, "--help")
    assert re.findall(r"^    ([a-z]+)", said, re.MULTILINE) == VERBS


def build_id(path: str) -> str:
    notes = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=False).stdout
    found = re.search(r"Build ID: ([0-9a-f]+)", notes)
    return found[1] if found else ""


@pytest.mark.parametrize("path", DEBIAN)
def test_functions_of_debian(path: str, folder: Path, environment: dict[str, str]) -> None:
    name = f"functions/{Path(path).name}-{build_id(path)[:16]}.json"
    if not (Path(__file__).parent / "expected" / name).exists() and not is_pinning():
        pytest.skip(f"{path} is another build than the one that was pinned")
    listing = json.loads(run(folder, environment, "functions", path, "--json").splitlines()[-1])
    check(name, "".join(json.dumps(item, sort_keys=True) + "\n" for item in listing))


def test_functions_of_a_file_that_is_made_here(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "made.s").write_text(SELF_MADE)
    layout = ["-Wl,-Ttext=0x1000", "-Wl,--build-id=none", "-nostdlib", "-shared"]
    subprocess.run(["gcc", *layout, "-o", "made.so", "made.s"], cwd=tmp_path, check=True)
    listing = json.loads(run(tmp_path, environment, "functions", "made.so", "--json").splitlines()[-1])
    check("functions/made.json", "".join(json.dumps(item, sort_keys=True) + "\n" for item in listing))


def test_templates() -> None:
    lines = [
        f"{name} {at:4} {code[at : at + 32].hex(' ')}\n"
        for name, code in fill_templates().items()
        for at in range(0, len(code), 32)
    ]
    check("templates.txt", "".join(lines))


def test_a_changed_byte_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"(?s)-p50 2\n\+p50 3\n.*make golden"):
        compare("report.txt", "calls\np50 2\n", "calls\np50 3\n")
    with pytest.raises(AssertionError, match="is not what was pinned"):
        compare("report.txt", "", "calls\n")
