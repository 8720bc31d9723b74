# SPDX-License-Identifier: Apache-2.0
"""Analysis and relocation of x86-64 machine code.

Another architecture has the same files in a folder of its own.
"""
