# SPDX-License-Identifier: Apache-2.0
"""The processes of a private Open vSwitch: its database, started with an empty one, and whatever is started after."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from tests.support.probed import wait_until

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
PATIENCE_S = 120


class SwitchProcesses:
    """A running database server, with everything in one folder.

    Args:
        folder: where the database, sockets and logs are.

    Attributes:
        socket: where the switch finds the database.
        configure: words that begin a command of ovs-vsctl.
        said: what the processes say on standard error.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = f"unix:{folder}/db.sock"
        self.configure = ("ovs-vsctl", f"--db={self.socket}", f"--timeout={PATIENCE_S}")
        self.said = folder / "said"
        names = ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR")
        self._environment = {**os.environ, **dict.fromkeys(names, str(folder))}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.run("ovsdb-tool", "create", folder / "conf.db", SCHEMA)
        self.start("ovsdb-server", folder / "conf.db", f"--remote=p{self.socket}", "db.ctl")
        assert wait_until(lambda: self._listens("db.sock"), PATIENCE_S), self.said.read_text()

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        """Starts a daemon, without the last word, the name of its control socket, and waits until it listens."""
        *command, control = words
        options = (f"--unixctl={self.folder}/{control}", "--no-chdir", "-vconsole:off", "-vsyslog:off")
        options += (f"--log-file={self.folder}/{control}.log",)
        silent = subprocess.DEVNULL
        with self.said.open("ab") as said:
            process = subprocess.Popen(
                [str(word) for word in (*command, *options)],
                env=self._environment, stdin=silent, stdout=silent, stderr=said,
            )  # fmt: skip
        self._processes.append(process)
        assert wait_until(lambda: self._listens(str(control)), PATIENCE_S), self.said.read_text()
        return process

    def _listens(self, name: str) -> bool:
        """Whether somebody listens at a socket: it is there a moment earlier, and commands try only once."""
        folder = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(f"/proc/self/fd/{folder}/{name}")  # of any length
        except OSError:
            return False
        finally:
            os.close(folder)
        return True

    def run(self, *words: object) -> str:
        """What a command prints, which must work."""
        command = [str(word) for word in words]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def stop(self) -> None:
        """Ends them, the last one first."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
