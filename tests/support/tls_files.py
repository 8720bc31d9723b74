# SPDX-License-Identifier: Apache-2.0
"""Certificates for 127.0.0.1, made by openssl: a CA, a chain that it signed, and an expired one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificates(NamedTuple):
    """Paths of PEM files."""

    ca: Path
    ca_key: Path
    chain: Path  # good for a server at 127.0.0.1 and for a client
    key: Path
    expired: Path  # as chain, of yesterday
    expired_key: Path


def make_certificates(folder: Path) -> Certificates:
    found = Certificates(
        *(folder / f"{name}.pem" for name in ("ca", "ca-key", "chain", "key", "expired", "expired-key"))
    )
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    _openssl("req", "-x509", *curve, "-keyout", found.ca_key, "-out", found.ca, "-days", 30, "-subj", "/CN=test CA")
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1\n")
    for chain, key, days in ((found.chain, found.key, 30), (found.expired, found.expired_key, -1)):
        request = folder / "request.pem"
        _openssl("req", *curve, "-keyout", key, "-out", request, "-subj", "/CN=127.0.0.1")
        signer = ("-CA", found.ca, "-CAkey", found.ca_key, "-CAcreateserial", "-days", days)
        _openssl("x509", "-req", "-in", request, *signer, "-extfile", extensions, "-out", chain)
    return found


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
