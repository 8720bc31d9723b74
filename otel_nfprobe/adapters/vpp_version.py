# SPDX-License-Identifier: Apache-2.0
"""Which version of VPP runs, as it says itself, else as its library is called. Reads the target only.

vlib_plugin_app_version, which the program exports and plugins are compared with    "26.06-release"
DT_SONAME of libvlib                                                                libvlib.so.26.06
"""

from __future__ import annotations

import re

from otel_nfprobe.adapters.vpp_graph import LIBRARY, module_exporting
from otel_nfprobe.adapters.vpp_names import TextReader
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.target.target import Target

SYMBOL = "vlib_plugin_app_version"
_VERSION = re.compile(r"\d+\.\d+[\w.~+-]{0,60}", re.ASCII)


def read_version(target: Target) -> str:
    """Such as `26.06-release`, or `26.06` where only the library's name says so; empty where nothing does."""
    module = module_exporting(target, SYMBOL, LIBRARY)
    symbol = None if module is None else module.image.find_export(SYMBOL)
    if module is not None and symbol is not None:
        try:
            text = TextReader(target).read(target.read_word(module.base + symbol.address))
        except NfprobeError:
            text = ""
        if _VERSION.fullmatch(text):
            return text
    names = (module.image.soname for module in target.modules() if module.name.startswith(LIBRARY + "."))
    versions = (name.removeprefix(LIBRARY + ".so.") for name in names)
    return next((version for version in versions if _VERSION.fullmatch(version)), "")
