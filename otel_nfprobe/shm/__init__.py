# SPDX-License-Identifier: Apache-2.0
"""The session's shared memory: rings, threads and their numbers, patches. The target may write anything there."""
