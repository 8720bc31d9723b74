# SPDX-License-Identifier: Apache-2.0
"""`python -m otel_nfprobe` is `nfprobe`."""

import sys

from otel_nfprobe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
