# SPDX-License-Identifier: Apache-2.0
"""Why a packet was late: what else happened to its batch and those before, against what is usual."""
