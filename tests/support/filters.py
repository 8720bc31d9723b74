# SPDX-License-Identifier: Apache-2.0
"""Seccomp filters for test targets, made by libseccomp, which container runtimes use, too."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

ALLOW, KILL_PROCESS, LOG = 0x7FFF0000, 0x80000000, 0x7FFC0000
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
COMPARE_MASKED = 7  # SCMP_CMP_MASKED_EQ
KNOWN_CALLS = 441  # what container runtimes of 2022 know
NAMESPACE_FLAGS = 0x7E020000

# What the default profile of Docker and containerd keeps from a container without added capabilities.
_CONTAINER_FORBIDS = """
    _sysctl acct add_key afs_syscall bpf clock_settime create_module delete_module fanotify_init finit_module
    fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy getpmsg init_module io_uring_enter
    io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind
    migrate_pages mount mount_setattr move_mount move_pages nfsservctl open_by_handle_at open_tree
    perf_event_open personality pidfd_getfd pivot_root process_madvise putpmsg query_module quotactl reboot
    request_key security set_mempolicy setdomainname sethostname setns settimeofday swapoff swapon sysfs syslog
    tuxcall umount2 unshare uselib userfaultfd ustat vhangup vserver
"""
CONTAINER_FORBIDS = frozenset(_CONTAINER_FORBIDS.split())


def answer(error: int) -> int:
    """The action that answers an errno."""
    return 0x00050000 | error


class _Comparison(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    ]


class FilterMaker:
    """A filter for 64-bit x86 programs.

    Args:
        default: the action for calls without a rule.
    """

    def __init__(self, default: int) -> None:
        try:
            self._library = ctypes.CDLL("libseccomp.so.2")
        except OSError:
            pytest.skip("libseccomp2 is not installed: scripts/set-up test")
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._library.seccomp_syscall_resolve_num_arch.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(default)))
        assert self._context

    def add(self, action: int, number: int) -> None:
        """A rule for one system call."""
        result = self._library.seccomp_rule_add_exact(self._context, ctypes.c_uint32(action), number, 0)
        assert result == 0, f"system call {number}: {os.strerror(-result)}"

    def add_masked(self, action: int, number: int, mask: int) -> None:
        """A rule for calls whose first argument has no bit of the mask."""
        comparison = _Comparison(0, COMPARE_MASKED, mask, 0)
        result = self._library.seccomp_rule_add_array(
            self._context, ctypes.c_uint32(action), number, 1, ctypes.byref(comparison)
        )
        assert result == 0

    def name(self, number: int) -> str:
        """A system call's name, or "" when libseccomp does not know it."""
        pointer = self._library.seccomp_syscall_resolve_num_arch(ctypes.c_uint32(0xC000003E), number)
        return ctypes.string_at(pointer).decode() if pointer else ""

    def write(self, path: Path) -> Path:
        """Writes the program: an array of struct sock_filter."""
        with open(path, "wb") as file:
            assert self._library.seccomp_export_bpf(self._context, file.fileno()) == 0
        self._library.seccomp_release(self._context)
        return path


def container_profile(path: Path) -> Path:
    """The default profile of Docker and containerd: a list of allowed calls, EPERM for all others."""
    maker = FilterMaker(answer(errno.EPERM))
    for number in range(KNOWN_CALLS):
        name = maker.name(number)
        if name == "clone":
            maker.add_masked(ALLOW, number, NAMESPACE_FLAGS)
        elif name == "clone3":
            maker.add(answer(errno.ENOSYS), number)
        elif name and name not in CONTAINER_FORBIDS:
            maker.add(ALLOW, number)
    return maker.write(path)


def allow_only(path: Path, numbers: Iterable[int], default: int) -> Path:
    """Allows these calls."""
    maker = FilterMaker(default)
    for number in sorted(set(numbers)):
        maker.add(ALLOW, number)
    return maker.write(path)


def forbid_only(path: Path, number: int, action: int) -> Path:
    """Allows everything but one call."""
    maker = FilterMaker(ALLOW)
    maker.add(action, number)
    return maker.write(path)


def install(path: Path) -> None:
    """Puts a filter on this process, for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = path.read_bytes()
    header = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(buffer := ctypes.create_string_buffer(program)))
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0) == 0, os.strerror(ctypes.get_errno())
    del buffer
