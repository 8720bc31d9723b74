# SPDX-License-Identifier: Apache-2.0
"""What the machine code of x86-64 shows, and how it is moved.

Another architecture has the same files in a folder of its name.
"""
