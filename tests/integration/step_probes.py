# SPDX-License-Identifier: Apache-2.0
"""Runs inside gdb: single-steps the probed calls of tests/targets/registers.c and prints each stop.

One JSON object a line: the step's pc, rsp, rbp, the words above rsp, and the canonical frame address of the
function that was called, which is rsp at the call instruction.
"""

import json
import os

import gdb

HITS = 10  # two rounds of five calls
WORDS = 32
SKIPPED = "use_red_zone"  # has a long loop
ONLY = os.environ.get("STEP_ONLY")  # a function; without it, all others


def value(expression):
    return int(gdb.parse_and_eval(expression)) & (1 << 64) - 1


def is_chosen():
    function = value("*(unsigned long *)$rsp")
    if ONLY:
        return function == value(f"(unsigned long)&{ONLY}")
    return function != value(f"(unsigned long)&{SKIPPED}")


def call_site():
    start = value("(unsigned long)&call_with")
    for line in gdb.selected_frame().architecture().disassemble(start, count=400):
        if line["asm"].startswith("call"):
            return line["addr"], line["addr"] + line["length"]
    raise gdb.GdbError("no call in call_with")


def step_call(behind):
    cfa = value("$rsp")
    while True:
        gdb.execute("stepi", to_string=True)
        pc, rsp = value("$pc"), value("$rsp")
        if pc == behind:
            return
        memory = gdb.selected_inferior().read_memory(rsp, WORDS * 8).tobytes()
        words = [int.from_bytes(memory[i : i + 8], "little") for i in range(0, len(memory), 8)]
        print(json.dumps({"pc": pc, "rsp": rsp, "rbp": value("$rbp"), "cfa": cfa, "words": words}))


gdb.execute("set pagination off")
site, behind = call_site()
stop = gdb.Breakpoint(f"*{site:#x}")
print("stepping", flush=True)
for _ in range(HITS):
    gdb.execute("continue", to_string=True)
    if is_chosen():
        stop.enabled = False
        step_call(behind)
        stop.enabled = True
stop.delete()
gdb.execute("detach", to_string=True)
