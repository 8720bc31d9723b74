# SPDX-License-Identifier: Apache-2.0
"""A session on disk: written as it runs or by the flight recorder, read again, and as tables for other programs."""

__all__ = ["flightrecorder", "nodes", "outputfile", "recording", "replay", "sessionfacts", "tables"]
