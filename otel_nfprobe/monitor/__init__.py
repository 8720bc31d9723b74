# SPDX-License-Identifier: Apache-2.0
"""A session from attach to detach: probes in, rings drained, children followed, probes out, the summary."""
