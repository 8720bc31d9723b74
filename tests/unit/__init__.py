# SPDX-License-Identifier: Apache-2.0
"""One folder for each package of otel_nfprobe."""
