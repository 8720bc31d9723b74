# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused before the target is touched: a sentence, a status, the next command to type."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.cli.main import main
from tests.support.firewall import DEAD, DESCRIPTION, Firewall, assert_told, fails

pytestmark = [pytest.mark.integration, pytest.mark.shared]


@pytest.fixture
def firewall(start_firewall: Callable[..., Firewall]) -> Firewall:
    return start_firewall(2_000)


@pytest.mark.parametrize("verb", ["attach", "detach", "status"])
@pytest.mark.parametrize("pid", ["4194305", "0", "-5", "abc", "1.5", "", "99999999999999999999999"])
def test_no_such_process(verb: str, pid: str, capfd: pytest.CaptureFixture[str]) -> None:
    fails(capfd, 2, verb, pid)


def test_itself(capfd: pytest.CaptureFixture[str]) -> None:
    fails(capfd, 3, "attach", os.getpid(), "--functions", "*", said="itself")


WRONG_OPTIONS: list[tuple[list[str], int, str]] = [
    ([], 2, "--functions"),
    (["--functions", "no_such_*"], 2, "no_such_*"),
    (["--functions", "nosuch.so:*"], 2, "nosuch.so"),
    (["--functions", ""], 2, ""),
    (["--functions", "[", "--functions", "fw_*"], 2, "["),
    (["--functions", "fw_*", "--exclude", "*"], 2, "--exclude"),
    (["--adapter", "nosuch"], 2, "nosuch"),
    (["--adapter", "dpdk"], 2, "dpdk"),
    (["--adapter", ""], 2, ""),
    (["--adapter", "/nonexistent.yaml"], 2, "/nonexistent.yaml"),
    (["--functions", "fw_*", "--strategy", "nonsense"], 2, "nonsense"),
    (["--functions", "fw_*", "--strategy", "got"], 1, "None of the"),
    (["--ring-size", "3MiB"], 2, "--ring-size"),
    (["--ring-size", "junk"], 2, "junk"),
    (["--ring-size", "1TiB"], 2, "--ring-size"),
    (["--ring-size", "0"], 2, "--ring-size"),
    (["--ring-size", "-1"], 2, "--ring-size"),
    (["--sample", "2"], 2, "'2'"),
    (["--sample", "nan"], 2, "nan"),
    (["--slowest", "200%"], 2, "200%"),
    (["--slower-than", "50"], 2, "50"),
    (["--for", "nonsense"], 2, "nonsense"),
    (["--for", "-1s"], 2, "--for"),
    (["--packets", "some"], 2, "some"),
    (["--no-such-option"], 2, "--no-such-option"),
    (
        ["--functions", "fw_*", "--record", "/nonexistent/folder/x.nfprobe"],
        2,
        "/nonexistent/folder/x.nfprobe",
    ),
    (["--functions", "fw_*", "--record", "/proc/x.nfprobe"], 2, "/proc/x.nfprobe"),
    (["--functions", "fw_*", "--record", "/tmp"], 2, "/tmp"),
    (["--endpoint", "htp://127.0.0.1:4317"], 2, "htp"),
    (["--endpoint", "127.0.0.1:99999"], 2, "99999"),
    (["--endpoint", "http://127.0.0.1:4318/v1/traces"], 2, "path"),
    (["--endpoint", ""], 2, ""),
    (["--packets", "none", "--endpoint", DEAD], 2, "--packets none"),
]


def test_wrong_options(firewall: Firewall, capfd: pytest.CaptureFixture[str]) -> None:
    for options, status, said in WRONG_OPTIONS:
        fails(capfd, status, "attach", firewall.pid, *options, said=said)
        firewall.assert_untouched()


BAD_DESCRIPTIONS: dict[str, bytes] = {
    "malformed": b"name: [firewall",
    "not_a_mapping": b"- 1\n- 2\n",
    "empty": b"",
    "binary": bytes(range(256)),
    "unknown_key": DESCRIPTION.read_bytes() + b"\nnonsense: 1\n",
    "no_such_function": DESCRIPTION.read_bytes().replace(b"fw_receive", b"fw_perceive"),
    "wrong_type": b"name: 5\nreceive: hello\n",
    "bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(8)),
}


def test_bad_descriptions(firewall: Firewall, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, content in BAD_DESCRIPTIONS.items():
        path = tmp_path / f"{name}.yaml"
        path.write_bytes(content)
        fails(capfd, 2, "attach", firewall.pid, "--adapter", path)
        firewall.assert_untouched()
    (tmp_path / "folder.yaml").mkdir()
    fails(capfd, 2, "attach", firewall.pid, "--adapter", tmp_path / "folder.yaml")


def test_malformed_environment(
    firewall: Firewall, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for variable, value, endpoint in [
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "abc", DEAD),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "lzma", DEAD),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nonexistent", "https://127.0.0.1:9"),
    ]:
        with monkeypatch.context() as context:
            context.setenv(variable, value)
            fails(capfd, 2, "attach", firewall.pid, "--endpoint", endpoint, said=variable)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://")
    fails(capfd, 2, "attach", firewall.pid)
    firewall.assert_untouched()


def as_nobody(words: list[str]) -> tuple[int, str]:
    """Status of a command without rights, and what it says; in a child, as nobody may not read every installation."""
    reader, writer = os.pipe()
    child = os.fork()  # libraries of other tests, gRPC for one, may say something here
    if child:
        os.close(writer)
        with os.fdopen(reader) as said:
            errors = said.read()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), errors
    try:
        os.dup2(writer, 2)
        sys.stderr = os.fdopen(writer, "w", buffering=1)
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        status = main(words)
    except BaseException:
        status = 99
    os._exit(status)


def test_other_users_process(firewall: Firewall, capfd: pytest.CaptureFixture[str]) -> None:
    pid = str(firewall.pid)
    for verb, options in [("attach", ["--adapter", str(DESCRIPTION)]), ("detach", []), ("status", [])]:
        fails(capfd, 2, verb, "0")  # imports what the child will need
        result, errors = as_nobody([verb, pid, *options])
        assert result == 1, errors
        assert_told(errors, pid)
    assert as_nobody(["status"])[0] == 1
    firewall.assert_untouched()


def test_failed_attach_leaves_no_file_and_no_device(
    firewall: Firewall, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nothing = ("attach", firewall.pid, "--functions", "fw_parse", "--strategy", "got", "--record")
    fails(capfd, 1, *nothing, tmp_path / "x.nfprobe", said="None of the")
    assert not (tmp_path / "x.nfprobe").exists()
    fails(capfd, 1, *nothing, "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    os.mkfifo(tmp_path / "pipe")
    fails(capfd, 2, *nothing, tmp_path / "pipe", said="pipe")
    firewall.assert_untouched()
