# SPDX-License-Identifier: Apache-2.0
"""Random and damaged input; docs of a run are in CONTRIBUTING.md."""
