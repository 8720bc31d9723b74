# SPDX-License-Identifier: Apache-2.0
"""arm64, as architecture.py asks for it: whoever asks is told that it is not supported yet."""

from __future__ import annotations

from typing import Any

from otel_nfprobe.arch.architecture import Architecture
from otel_nfprobe.base.errors import RefusedError
from otel_nfprobe.base.processors import NAMES


class _Missing:
    """A member that nobody has written."""

    def __get__(self, owner: object, kind: type) -> Any:
        raise RefusedError(f"arm64 is not supported yet: nfprobe works on {NAMES} only.")


class _Members:
    processor = _Missing()

    decoder = _Missing()
    scan_function = _Missing()
    is_table_jump = _Missing()
    is_conditional = _Missing()
    count_argument_words = _Missing()
    branch_targets = _Missing()
    memory_uses = _Missing()
    stub_slot = _Missing()

    prove_arguments = _Missing()
    count_words = _Missing()
    infer = _Missing()
    sets_frame_pointer = _Missing()
    short_fields = _Missing()
    rewritten_words = _Missing()
    list_fields = _Missing()

    cfa_at_entry = _Missing()
    landing_pad_bytes = _Missing()
    jump_bytes = _Missing()
    jump_reach_bytes = _Missing()
    find_site = _Missing()
    encode_site = _Missing()
    decode_site = _Missing()
    find_jumps = _Missing()

    trap = _Missing()
    no_operation = _Missing()
    return_code = _Missing()
    encode_jump = _Missing()
    encode_far_jump = _Missing()
    encode_call = _Missing()
    relocate = _Missing()
    pushed_registers = _Missing()
    check_body = _Missing()
    find_members = _Missing()
    find_exits = _Missing()
    build_body = _Missing()
    encode_exit = _Missing()

    assemble = _Missing()
    argument_text = _Missing()
    arguments_text = _Missing()
    field_text = _Missing()

    system_call_code = _Missing()
    system_call_prefix = _Missing()
    system_calls = _Missing()
    sync_core_calls = _Missing()
    check_calls = _Missing()
    counter_calls = _Missing()
    probe_calls = _Missing()
    injection_calls = _Missing()

    clock_flags = _Missing()
    core_devices = _Missing()
    counter_reading = _Missing()


ARCHITECTURE: Architecture = _Members()
