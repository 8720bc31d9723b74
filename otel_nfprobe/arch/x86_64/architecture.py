# SPDX-License-Identifier: Apache-2.0
"""x86-64, as architecture.py asks for it."""

from __future__ import annotations

from otel_nfprobe.arch import architecture
from otel_nfprobe.arch.x86_64 import (
    arguments,
    body,
    calls,
    captures,
    copied,
    dataflow,
    fields,
    relocate,
    scan,
    sites,
    snippet_code,
    system_calls,
)
from otel_nfprobe.base.processors import X86_64


class _Members:
    processor = X86_64

    decoder = "iced-x86"
    scan_function = staticmethod(scan.scan_function)
    is_table_jump = staticmethod(scan.is_table_jump)
    is_conditional = staticmethod(scan.is_conditional)
    count_argument_words = staticmethod(scan.count_argument_words)
    branch_targets = staticmethod(scan.branch_targets)
    memory_uses = staticmethod(scan.memory_uses)
    stub_slot = staticmethod(scan.stub_slot)

    prove_arguments = arguments.Arguments
    count_words = staticmethod(copied.count_words)
    infer = staticmethod(dataflow.infer)
    sets_frame_pointer = staticmethod(sites.sets_frame_pointer)
    short_fields = staticmethod(fields.short_fields)
    rewritten_words = staticmethod(fields.rewritten_words)
    list_fields = staticmethod(fields.list_fields)

    cfa_at_entry = X86_64.stack_pointer, 8
    landing_pad_bytes = len(sites.ENDBR)
    jump_bytes = relocate.JUMP_BYTES
    jump_reach_bytes = relocate.JUMP_REACH_BYTES
    find_site = staticmethod(sites.find_site)
    encode_site = staticmethod(sites.encode_site)
    decode_site = staticmethod(sites.decode_site)
    find_jumps = staticmethod(sites.find_jumps)

    trap = sites.TRAP
    no_operation = b"\x0f\x1f\x44\x00\x00"
    return_code = b"\xc3"
    encode_jump = staticmethod(relocate.encode_jump)
    encode_far_jump = staticmethod(relocate.encode_far_jump)
    encode_call = staticmethod(relocate.encode_call)
    pushed_registers = staticmethod(relocate.pushed_registers)
    relocate = staticmethod(relocate.relocate)
    check_body = staticmethod(body.check_body)
    find_members = staticmethod(body.find_members)
    find_exits = staticmethod(body.find_exits)
    build_body = staticmethod(body.build_body)
    encode_exit = staticmethod(body.encode_exit)

    assemble = staticmethod(snippet_code.assemble)
    argument_text = staticmethod(captures.argument_text)
    arguments_text = staticmethod(captures.arguments_text)
    field_text = staticmethod(captures.field_text)

    system_call_code = b"\x0f\x05"
    system_call_prefix = "__x64_sys_"
    system_calls = system_calls.NUMBERS
    sync_core_calls = calls.SYNC_CORE_CALLS
    check_calls = calls.CHECK_CALLS
    counter_calls = calls.COUNTER_CALLS
    probe_calls = calls.PROBE_CALLS
    injection_calls = staticmethod(calls.injection_calls)

    clock_flags = frozenset(("constant_tsc", "nonstop_tsc"))
    core_devices = r"cpu(_core|_atom|_lowpower)?"
    counter_reading = "rdpmc"


ARCHITECTURE: architecture.Architecture = _Members()
