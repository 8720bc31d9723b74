# SPDX-License-Identifier: Apache-2.0
"""The numbers that a running VPP gives its threads, as in `show threads`: 0 is the main one, 1 the first worker, ...

    vlib_worker_threads, which libvlib exports -> one structure for each thread, which holds the kernel's number of it

Where in it differs between releases: it is where all of them hold threads of the process, the first one its main one.
What does not fit gives no numbers. Reads the target only.
"""

from __future__ import annotations

import struct

from otel_nfprobe.adapters.vpp_graph import THREADS_MAX, module_of
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.target.target import Target

SYMBOL = "vlib_worker_threads"
STRUCTURE_BYTES = range(192, 640, 64)  # whole cache lines; 256 as of 26.06
FIRST_FIELD = 64  # the first line is about the barrier


def find_thread_numbers(target: Target, workers_and_main: int) -> dict[int, int]:
    """Numbers by the kernel's number of the thread; empty where they are not found."""
    module = module_of(target, SYMBOL)
    if module is None:
        return {}
    own = {thread.tid for thread in target.threads()}
    try:
        address = target.read_word(module.base + module.image.exports[SYMBOL].address)
        count = int.from_bytes(target.read(address - 8, 4), "little")
        if not workers_and_main <= count <= THREADS_MAX:
            return {}
        for size in STRUCTURE_BYTES:
            content = target.read(address, workers_and_main * size)
            for field in range(FIRST_FIELD, size, 8):
                places = range(field, len(content), size)
                tids = [struct.unpack_from("<Q", content, place)[0] for place in places]
                if tids[0] == target.pid and own.issuperset(tids) and len(set(tids)) == len(tids):
                    return {tid: number for number, tid in enumerate(tids)}
    except NfprobeError:
        pass
    return {}
