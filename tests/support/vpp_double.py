# SPDX-License-Identifier: Apache-2.0
"""Builds tests/targets/vpp, a double of VPP in two layouts."""

from __future__ import annotations

import subprocess
from pathlib import Path

RELEASES = (1903, 2606)
_SOURCES = Path(__file__).resolve().parent.parent / "targets" / "vpp"
_LIBRARY = [_SOURCES / name for name in ("vlib.c", "queues.c")]
_NODES = ("nodes.c", "arp.c", "copies.c", "crypto.c", "ends.c", "fragments.c")
_PROGRAM = [_SOURCES / name for name in ("vpp.c", *_NODES, "buffers.c", "workers.c")]


def build_double(folder: Path, release: int, *definitions: str) -> Path:
    """The stripped program. The older release's has copies of libvlib's variables."""
    compiler = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-s", f"-DRELEASE={release}", *definitions]
    model = ["-fPIC"] if release == 2606 else []
    linking = [f"-L{folder}", "-lvnet", "-lvlib", "-Wl,-rpath,$ORIGIN", "-pthread"]
    library, program = folder / "libvlib.so", folder / "vpp"
    subprocess.run([*compiler, "-shared", "-fPIC", *_LIBRARY, "-o", library], check=True)
    vnet = [_SOURCES / "vnet.c", "-o", folder / "libvnet.so", *linking[:1], "-lvlib"]
    subprocess.run([*compiler, "-shared", "-fPIC", *vnet], check=True)
    subprocess.run([*compiler, *model, *_PROGRAM, "-o", program, *linking], check=True)
    return program
