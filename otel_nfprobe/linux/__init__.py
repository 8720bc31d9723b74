# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells: perf rings, namespaces, steal time, symbols, and memory and files of other processes,
checked.
"""
