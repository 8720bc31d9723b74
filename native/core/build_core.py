# SPDX-License-Identifier: Apache-2.0
"""Write the C source of the extension module otel_nfprobe._core.

The declarations are taken from the headers themselves: what stands between `// cdef begin` and `// cdef end`, and the
name of every macro NFP_* that has a value. A header that has neither such a block nor the line `// cdef: macros` is no
part of the interface. cffi compiles them against the same headers, so the two cannot differ, and the C compiler says
what a macro's value is.

Called by CMake: build_core.py OUTPUT.c HEADER...
"""

import re
import sys
from pathlib import Path

from cffi import FFI

BLOCK = re.compile(r"// cdef begin\n(.*?)// cdef end", re.DOTALL)
MACRO = re.compile(r"^#define (NFP_\w+)\s", re.MULTILINE)


def main(output: str, headers: list[str]) -> None:
    builder = FFI()
    headers = [header for header in headers if "// cdef" in Path(header).read_text()]
    for header in headers:
        text = Path(header).read_text()
        for name in MACRO.findall(BLOCK.sub("", text)):
            builder.cdef(f"#define {name} ...")
        for block in BLOCK.findall(text):
            builder.cdef(block)
    includes = "".join(f'#include "{Path(header).resolve()}"\n' for header in headers)
    builder.set_source("otel_nfprobe._core", includes)
    builder.emit_c_code(output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
