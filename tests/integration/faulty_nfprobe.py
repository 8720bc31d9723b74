# SPDX-License-Identifier: Apache-2.0
"""nfprobe, whose process that reads ELF files has an accident with files that hold a mark.

python faulty_nfprobe.py ACCIDENT MARK QUESTIONS VERB ...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from otel_nfprobe.cli.main import main
from otel_nfprobe.elf import elfparser, elfplain

os.environ["XDG_CACHE_HOME"] = "/dev/null"  # what a sound process has read of these files is no answer here
elfplain.read_plain = lambda *_: None  # all files are left to that process
WORKER = Path(__file__).resolve().parents[1] / "support" / "faulty_worker.py"
elfparser.parser = elfparser.ElfParser([sys.executable, "-I", "-S", str(WORKER), *sys.argv[1:4]])
sys.exit(main(sys.argv[4:]))
