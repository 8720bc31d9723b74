# SPDX-License-Identifier: Apache-2.0
# Written by scripts/core-stub from native/core/*.h and native/abi/*.h, which say what each means.
from collections.abc import Callable
from typing import Any, SupportsFloat, SupportsIndex, TypeAlias

_Int: TypeAlias = SupportsIndex

class _FFI:
    NULL: Any
    CData: type[Any]
    CType: type[Any]
    error: type[Exception]
    def addressof(self, cdata: Any, *fields: str | int) -> Any: ...
    def buffer(self, cdata: Any, size: int = -1) -> Any: ...
    def callback(self, ctype: str, python_callable: Callable[..., Any]) -> Any: ...
    def cast(self, ctype: Any, value: Any) -> Any: ...
    def from_buffer(self, *arguments: Any, require_writable: bool = False) -> Any: ...
    def gc(self, cdata: Any, destructor: Callable[[Any], Any] | None, size: int = 0) -> Any: ...
    def memmove(self, dest: Any, src: Any, n: int) -> None: ...
    def new(self, ctype: Any, init: Any = None) -> Any: ...
    def offsetof(self, ctype: Any, *fields: str | int) -> int: ...
    def release(self, cdata: Any) -> None: ...
    def sizeof(self, ctype: Any) -> int: ...
    def string(self, cdata: Any, maxlen: int = -1) -> bytes: ...
    def typeof(self, ctype: Any) -> Any: ...
    def unpack(self, cdata: Any, length: int) -> Any: ...

class _Lib:
    NFP_ABSENCE_BUFFERS: int
    NFP_ABSENCE_CALL: int
    NFP_ABSENCE_DEPTH: int
    NFP_ABSENCE_FAULT: int
    NFP_ABSENCE_FIRMWARE: int
    NFP_ABSENCE_FRAMES: int
    NFP_ABSENCE_HELD: int
    NFP_ABSENCE_INCOMPLETE: int
    NFP_ABSENCE_IRQ: int
    NFP_ABSENCE_MAJOR: int
    NFP_ABSENCE_NAME_BYTES: int
    NFP_ABSENCE_NMI: int
    NFP_ABSENCE_PREEMPTED: int
    NFP_ABSENCE_SOFTIRQ: int
    NFP_ABSENCE_STEAL: int
    NFP_ABSENCE_STOPPED: int
    NFP_ABSENCE_SWITCH: int
    NFP_ABSENCE_TEXT_BYTES: int
    NFP_ABSENCE_VECTOR: int
    NFP_ABSENCE_WAIT: int
    NFP_ABSENCE_WAKER_BYTES: int
    NFP_ABSENCE_WOKEN_BY_INTERRUPT: int
    NFP_ABSENT: int
    NFP_ABSORBED: int
    NFP_ARENA_BYTES: int
    NFP_ARENA_OFFSET: int
    NFP_ARRIVAL_EITHER: int
    NFP_ARRIVAL_TICKS: int
    NFP_ARRIVAL_UNIX_NS: int
    NFP_BATCH_ARRIVAL: int
    NFP_BATCH_CHOSEN: int
    NFP_BATCH_DRAWN: int
    NFP_BATCH_FULL: int
    NFP_BATCH_LOSSY: int
    NFP_BATCH_NOTE: int
    NFP_BATCH_PRIOR: int
    NFP_BATCH_SATURATED: int
    NFP_BATCH_SIZE: int
    NFP_BATCH_TAKEN_OVER: int
    NFP_BATCH_TICKS: int
    NFP_BATCH_UNDETAILED: int
    NFP_BATCH_UNFINISHED: int
    NFP_BOOT_CPU_WORDS: int
    NFP_BOOT_FAILED: int
    NFP_BOOT_GO: int
    NFP_BOOT_LIBRARY_FILLED: int
    NFP_BOOT_NONE: int
    NFP_BOOT_SESSION_READY: int
    NFP_BOOT_WANTS_FILE: int
    NFP_BOOT_WANTS_LIBRARY: int
    NFP_CALL_CLIPPED: int
    NFP_CALL_CONTINUED: int
    NFP_CALL_DROP: int
    NFP_CALL_MARK: int
    NFP_CALL_RECEIVE: int
    NFP_CALL_SHARED: int
    NFP_CALL_TICKS: int
    NFP_CALL_TRANSMIT: int
    NFP_CALL_UNWOUND: int
    NFP_CALL_VALUE: int
    NFP_CAPACITY: int
    NFP_CHANGE_ISLAND_LEFT: int
    NFP_CHANGE_LEFT: int
    NFP_CHANGE_MADE: int
    NFP_CHANGE_UNEXPECTED: int
    NFP_CHANGE_UNREAD: int
    NFP_CODE_ARGUMENT: int
    NFP_CODE_CALL: int
    NFP_CODE_CONDITIONAL_JUMP: int
    NFP_CODE_EXITS_ELSEWHERE: int
    NFP_CODE_HAS_EXIT: int
    NFP_CODE_HAS_TABLE: int
    NFP_CODE_JUMP: int
    NFP_CODE_NEAR: int
    NFP_CODE_NO_TROUBLE: int
    NFP_CODE_OWN_ENTRY: int
    NFP_CODE_POINTER_JUMP: int
    NFP_CODE_POPS_ARGUMENTS: int
    NFP_CODE_READS_RETURN: int
    NFP_CODE_REFERENCE: int
    NFP_CODE_RETURN_ADDRESS: int
    NFP_CODE_RUNS_ON: int
    NFP_CODE_SLOT_JUMP: int
    NFP_CODE_STACK_ARGUMENTS: int
    NFP_CODE_TAKES_ADDRESS: int
    NFP_CODE_UNKNOWN: int
    NFP_COMMAND_CALIBRATE: int
    NFP_COMMAND_CALIBRATE_COUNTERS: int
    NFP_COMMAND_CLOSE: int
    NFP_COMMAND_COUNT: int
    NFP_COMMAND_COUNTERS: int
    NFP_COMMAND_END_TURNS: int
    NFP_COMMAND_LEAVE: int
    NFP_COMMAND_MAP_ARENA: int
    NFP_COMMAND_MAP_FILE: int
    NFP_COMMAND_NONE: int
    NFP_COMMAND_OPEN: int
    NFP_COMMAND_REGISTER_CODE: int
    NFP_COMMAND_REGISTER_FRAMES: int
    NFP_COMMAND_SYNC_CORE: int
    NFP_COUNTED_CALLS: int
    NFP_COUNTERS: int
    NFP_COUNTERS_CHANGES: int
    NFP_COUNTERS_CHANGE_SHIFT: int
    NFP_COUNTERS_LAST: int
    NFP_COUNTERS_OFF: int
    NFP_COUNTERS_SELF_VALID: int
    NFP_COUNTERS_VALID: int
    NFP_COUNTER_PAIRS: int
    NFP_COUNTER_SLOTS: int
    NFP_COUNTS_PER_TICK: int
    NFP_COUNT_ARGUMENT: int
    NFP_COUNT_FIXED: int
    NFP_COUNT_MEMORY: int
    NFP_COUNT_RETURN: int
    NFP_CPU_RUNS: int
    NFP_CPU_WAKINGS: int
    NFP_CPU_WAKING_NS_MAX: int
    NFP_DECODED_BRANCH: int
    NFP_DECODED_CALL: int
    NFP_DECODED_CALL_INDIRECT: int
    NFP_DECODED_JUMP_INDIRECT: int
    NFP_DECODED_LEA: int
    NFP_DECODED_MOVE: int
    NFP_DECODED_PLAIN: int
    NFP_DECODED_POP: int
    NFP_DECODED_RETURN: int
    NFP_DECODED_RETURN_POPPING: int
    NFP_DECODED_TRAP: int
    NFP_DESCRIPTOR_CHANNEL: int
    NFP_DESCRIPTOR_MEMORY: int
    NFP_DIGEST_KEY_0: int
    NFP_DIGEST_KEY_1: int
    NFP_DIGEST_OTHER_BYTES: int
    NFP_DIGEST_PAYLOAD_BYTES: int
    NFP_DISPOSITIONS: int
    NFP_DRAIN_NEAR: int
    NFP_DRAIN_SKIP: int
    NFP_DROPPED: int
    NFP_ENTRY: int
    NFP_EVENT_CONTEXT_SWITCH: int
    NFP_EVENT_DISABLED: int
    NFP_EVENT_EXCLUDE_HV: int
    NFP_EVENT_EXCLUDE_KERNEL: int
    NFP_EVENT_EXCLUDE_USER: int
    NFP_EVENT_FREQ: int
    NFP_EVENT_NO_KERNEL_FRAMES: int
    NFP_EVENT_NO_USER_FRAMES: int
    NFP_EVENT_PINNED: int
    NFP_EVENT_SAMPLE_ID_ALL: int
    NFP_EVENT_USE_CLOCKID: int
    NFP_EXIT: int
    NFP_EXTENSION_HEADERS_MAX: int
    NFP_FACTS_CUT: int
    NFP_FACTS_FRAGMENT: int
    NFP_FACTS_INNER: int
    NFP_FACTS_MALFORMED: int
    NFP_FAULT_BEGIN: int
    NFP_FAULT_EVENTS: int
    NFP_FAULT_MAJOR: int
    NFP_FAULT_MINOR: int
    NFP_FILL: int
    NFP_FRAME_DEREFERENCED: int
    NFP_FRAME_RETURN: int
    NFP_FRAME_ROWS_MAX: int
    NFP_FRAME_ROW_WORDS: int
    NFP_FROM_CAPTURE: int
    NFP_FROM_POLL: int
    NFP_FROM_RECEIVE: int
    NFP_FROM_STAMP: int
    NFP_FUNCTION_BITS: int
    NFP_FUNCTION_MASK: int
    NFP_GATE_AUTO: int
    NFP_GATE_COUNTED: int
    NFP_GATE_INNER: int
    NFP_GATE_LATE: int
    NFP_GATE_OUTER: int
    NFP_GATE_PACKETS: int
    NFP_HANDOVERS_MAX: int
    NFP_HANDOVER_AGAIN: int
    NFP_ISLAND_BYTES: int
    NFP_KIND_MASK: int
    NFP_KIND_SHIFT: int
    NFP_LAP_BIT: int
    NFP_LATE_NEVER: int
    NFP_LATE_NUMBERS: int
    NFP_LIBRARY_PROGRAMS: int
    NFP_LINK_EITHER: int
    NFP_LINK_ETHERNET: int
    NFP_LINK_INNER: int
    NFP_LINK_IP: int
    NFP_LOST: int
    NFP_LOST_CALL: int
    NFP_LOST_CLASSES: int
    NFP_LOST_MISTIMED: int
    NFP_LOST_PACKET: int
    NFP_LOST_POLL: int
    NFP_MARK: int
    NFP_MPLS_LABELS_MAX: int
    NFP_NODE_PROGRAM: int
    NFP_NONE: int
    NFP_NOTE_DRAWN: int
    NFP_NOTE_LATE: int
    NFP_NO_OFFSET: int
    NFP_NO_POSITION: int
    NFP_ORIGINS: int
    NFP_OTLP_BYTES_ENOUGH: int
    NFP_OTLP_BYTES_MAX: int
    NFP_OTLP_COUNTER_NAME_MAX: int
    NFP_OTLP_SPANS_MAX: int
    NFP_OTLP_TRACE_STATE_MAX: int
    NFP_PACKET: int
    NFP_PACKET_AMBIGUOUS: int
    NFP_PACKET_ARRIVAL: int
    NFP_PACKET_ARRIVAL_KNOWN: int
    NFP_PACKET_ARRIVAL_UNIX_NS: int
    NFP_PACKET_CUT: int
    NFP_PACKET_DST6_HIGH: int
    NFP_PACKET_DST6_LOW: int
    NFP_PACKET_FRAGMENT: int
    NFP_PACKET_ID: int
    NFP_PACKET_INNER: int
    NFP_PACKET_MALFORMED: int
    NFP_PACKET_MARKS_BIT: int
    NFP_PACKET_MARKS_SHIFT: int
    NFP_PACKET_NEXT: int
    NFP_PACKET_NUMBERS: int
    NFP_PACKET_ORIGIN: int
    NFP_PACKET_OWN_TICKS: int
    NFP_PACKET_REPEATED: int
    NFP_PACKET_SRC6_HIGH: int
    NFP_PACKET_SRC6_LOW: int
    NFP_PACKET_TAKEN: int
    NFP_PACKET_TEXT: int
    NFP_PACKET_TICKS: int
    NFP_PACKET_TOPIC: int
    NFP_PACKET_V4: int
    NFP_PACKET_VERSION_SHIFT: int
    NFP_PACKET_VIA: int
    NFP_POLLED_SHIFT: int
    NFP_POLL_ENTRY: int
    NFP_POLL_EXIT: int
    NFP_POLL_QUEUE: int
    NFP_PORT_GTP_U: int
    NFP_PORT_VXLAN: int
    NFP_PROBE_COUNT: int
    NFP_PROBE_TABLE_OFFSET: int
    NFP_PROGRAM_COUNT: int
    NFP_PROGRAM_OFFSET: int
    NFP_PROGRAM_PLAIN: int
    NFP_PROGRAM_SHIFT: int
    NFP_PUNTED: int
    NFP_PUSHED_NONE: int
    NFP_QUEUE_BITS: int
    NFP_QUEUE_HASH: int
    NFP_QUEUE_MARK_BITS: int
    NFP_QUEUE_RECEIVED: int
    NFP_QUEUE_SATURATED: int
    NFP_QUEUE_SHIFT: int
    NFP_QUEUE_SLOTS: int
    NFP_QUEUE_UNDETAILED: int
    NFP_RAW_TICKS: int
    NFP_REASON_CULPRIT: int
    NFP_REASON_SAMPLE: int
    NFP_REASON_SLOW: int
    NFP_REASON_SLOWEST: int
    NFP_RECORD_BYTES: int
    NFP_RECORD_SP: int
    NFP_RECORD_TAG: int
    NFP_RECORD_VALUE: int
    NFP_REGISTER_ARGUMENTS: int
    NFP_REGISTER_NEXT: int
    NFP_REGISTER_NONE: int
    NFP_RING_AHEAD_BYTES: int
    NFP_RING_BYTES_DEFAULT: int
    NFP_RING_BYTES_MAX: int
    NFP_RING_BYTES_MIN: int
    NFP_RING_LAPS_APART: int
    NFP_RING_OFFSET: int
    NFP_RING_PLACE: int
    NFP_RING_SLACK_BYTES: int
    NFP_ROLE_CALL: int
    NFP_ROLE_COMMAND: int
    NFP_ROLE_DEQUEUE: int
    NFP_ROLE_DROP: int
    NFP_ROLE_FREE: int
    NFP_ROLE_HAND_OVER: int
    NFP_ROLE_HOLD: int
    NFP_ROLE_KEEP: int
    NFP_ROLE_LAST: int
    NFP_ROLE_LENGTH: int
    NFP_ROLE_LOOP_ITERATION: int
    NFP_ROLE_MESSAGE: int
    NFP_ROLE_MESSAGE_SCOPE: int
    NFP_ROLE_NUMBER: int
    NFP_ROLE_PUNT: int
    NFP_ROLE_RECEIVE: int
    NFP_ROLE_RECEIVE_POOLED: int
    NFP_ROLE_RELEASE: int
    NFP_ROLE_REPLACE: int
    NFP_ROLE_SEND: int
    NFP_ROLE_TRANSMIT: int
    NFP_SAMPLE_ALL: int
    NFP_SEEN_BEFORE: int
    NFP_SEEN_PERHAPS: int
    NFP_SELF_TICKS: int
    NFP_SESSION_MAGIC: int
    NFP_SESSION_VERSION: int
    NFP_SHAPE_BARE: int
    NFP_SHAPE_CALL: int
    NFP_SHAPE_CALL_VALUE: int
    NFP_SHAPE_COPY_0: int
    NFP_SHAPE_COPY_16: int
    NFP_SHAPE_COPY_2: int
    NFP_SHAPE_COPY_32: int
    NFP_SHAPE_COPY_4: int
    NFP_SHAPE_COPY_64: int
    NFP_SHAPE_COPY_8: int
    NFP_SHAPE_COUNT: int
    NFP_SHAPE_ENTER: int
    NFP_SHAPE_ENTER_VALUE: int
    NFP_SHAPE_EXIT: int
    NFP_SHAPE_MARK: int
    NFP_SHAPE_PACKETS: int
    NFP_SHAPE_RECEIVE: int
    NFP_SHARE: int
    NFP_SHARED_EMPTY_POLLS: int
    NFP_SHARED_EMPTY_TICKS: int
    NFP_SITE_CODE: int
    NFP_SITE_GOT: int
    NFP_SITE_SINGLE: int
    NFP_SIZES_EXACT: int
    NFP_SNIPPET_BYTES_MAX: int
    NFP_STATE_ARMED: int
    NFP_STATE_NEW: int
    NFP_STATE_READY: int
    NFP_STATE_SILENT: int
    NFP_SYNC_CORES: int
    NFP_SYNC_IGNORE_TRAP: int
    NFP_SYNC_KEEP_TRAP: int
    NFP_SYNC_MEND_TRAP: int
    NFP_SYNC_REGISTER: int
    NFP_TAIL_BARRIER: int
    NFP_TAIL_BATCHING: int
    NFP_TAIL_BURST: int
    NFP_TAIL_BY_BYTES: int
    NFP_TAIL_FAULT: int
    NFP_TAIL_FIRMWARE: int
    NFP_TAIL_HOST: int
    NFP_TAIL_INTERRUPT: int
    NFP_TAIL_NONE: int
    NFP_TAIL_OWN: int
    NFP_TAIL_PARTS_MAX: int
    NFP_TAIL_PREEMPTION: int
    NFP_TAIL_QUEUE: int
    NFP_TAIL_SATURATED: int
    NFP_TAIL_UNKNOWN: int
    NFP_TAIL_WAIT: int
    NFP_TEXT_BYTES: int
    NFP_THREAD_BYTES: int
    NFP_THREAD_COUNT: int
    NFP_THREAD_COUNTED_ENTRY: int
    NFP_THREAD_COUNTED_EXIT: int
    NFP_THREAD_CURSOR: int
    NFP_THREAD_FREE: int
    NFP_THREAD_GATE: int
    NFP_THREAD_HANDING: int
    NFP_THREAD_LIMIT: int
    NFP_THREAD_PACKETS_ENTRY: int
    NFP_THREAD_PACKETS_EXIT: int
    NFP_THREAD_POLLED: int
    NFP_THREAD_RECEIVE_EXIT: int
    NFP_THREAD_SHARED: int
    NFP_THREAD_SHARES: int
    NFP_THREAD_SLOW: int
    NFP_THREAD_TABLE_OFFSET: int
    NFP_THREAD_TIMED_STEP: int
    NFP_THREAD_UNTIL_TIMED: int
    NFP_THREAD_USED: int
    NFP_TIMED_EVERY: int
    NFP_TOPIC_READ_BYTES: int
    NFP_TOPIC_RECORDS: int
    NFP_TOPIC_TEXT_BYTES: int
    NFP_TRACEPOINTS_MAX: int
    NFP_TRACEPOINT_BEGIN: int
    NFP_TRACEPOINT_DURATION: int
    NFP_TRACEPOINT_END: int
    NFP_TRACEPOINT_NO_FIELD: int
    NFP_TRACEPOINT_RUN_TIME: int
    NFP_TRACEPOINT_SWITCH: int
    NFP_TRACEPOINT_UNKNOWN: int
    NFP_TRANSMITTED: int
    NFP_TUNNELS_MAX: int
    NFP_TYPE_ETHERNET: int
    NFP_TYPE_IPV4: int
    NFP_TYPE_IPV6: int
    NFP_TYPE_MPLS: int
    NFP_TYPE_MPLS_MULTICAST: int
    NFP_UNKNOWN: int
    NFP_UNWOUND: int
    NFP_VALUE: int
    NFP_VERDICT_COUNT_TOO_LARGE: int
    NFP_VERDICT_COUNT_UNREADABLE: int
    NFP_VERDICT_LENGTH_WRONG: int
    NFP_VERDICT_NONE: int
    NFP_VERDICT_NUMBER_WRONG: int
    NFP_VERDICT_PACKET_UNREADABLE: int
    NFP_VERDICT_POINTERS_UNREADABLE: int
    NFP_VERSION_MESSAGE: int
    NFP_VLAN_TAGS_MAX: int
    NFP_WAITED_MAX: int
    NFP_WHEN_ALWAYS: int
    NFP_WHEN_NONZERO: int
    NFP_WHEN_ZERO: int
    PERF_COUNT_HW_CPU_CYCLES: int
    PERF_COUNT_SW_CPU_CLOCK: int
    PERF_COUNT_SW_DUMMY: int
    PERF_COUNT_SW_PAGE_FAULTS: int
    PERF_COUNT_SW_PAGE_FAULTS_MAJ: int
    PERF_COUNT_SW_PAGE_FAULTS_MIN: int
    PERF_EVENT_IOC_DISABLE: int
    PERF_EVENT_IOC_ENABLE: int
    PERF_EVENT_IOC_ID: int
    PERF_EVENT_IOC_PERIOD: int
    PERF_EVENT_IOC_SET_FILTER: int
    PERF_EVENT_IOC_SET_OUTPUT: int
    PERF_FORMAT_GROUP: int
    PERF_FORMAT_ID: int
    PERF_FORMAT_TOTAL_TIME_ENABLED: int
    PERF_FORMAT_TOTAL_TIME_RUNNING: int
    PERF_IOC_FLAG_GROUP: int
    PERF_RECORD_LOST: int
    PERF_RECORD_MISC_CPUMODE_MASK: int
    PERF_RECORD_MISC_EXACT_IP: int
    PERF_RECORD_MISC_KERNEL: int
    PERF_RECORD_SAMPLE: int
    PERF_SAMPLE_ADDR: int
    PERF_SAMPLE_CALLCHAIN: int
    PERF_SAMPLE_CPU: int
    PERF_SAMPLE_ID: int
    PERF_SAMPLE_IP: int
    PERF_SAMPLE_PERIOD: int
    PERF_SAMPLE_RAW: int
    PERF_SAMPLE_READ: int
    PERF_SAMPLE_REGS_USER: int
    PERF_SAMPLE_STACK_USER: int
    PERF_SAMPLE_TID: int
    PERF_SAMPLE_TIME: int
    PERF_TYPE_HARDWARE: int
    PERF_TYPE_SOFTWARE: int
    PERF_TYPE_TRACEPOINT: int
    def nfp_absences_take(self, _0: Any, _1: Any, _2: _Int) -> int: ...
    def nfp_address_format(self, _0: Any, _1: _Int, _2: Any) -> int: ...
    def nfp_calibrate_call(self) -> float: ...
    def nfp_change_live(self, _0: Any, _1: Any, _2: Any, _3: _Int) -> int: ...
    def nfp_change_word(self, _0: _Int, _1: _Int, _2: _Int, _3: _Int) -> int: ...
    def nfp_clock_convert(self, _0: Any, _1: _Int, _2: Any, _3: _Int, _4: Any) -> None: ...
    def nfp_clock_sample(self, _0: Any) -> None: ...
    def nfp_code_scan(self, _0: Any) -> None: ...
    def nfp_code_targets(self, _0: Any, _1: _Int, _2: _Int, _3: Any) -> int: ...
    def nfp_cpus_explain(self, _0: Any, _1: _Int, _2: Any) -> None: ...
    def nfp_cpus_read(self, _0: Any) -> None: ...
    def nfp_descriptor_take(self, _0: _Int, _1: _Int, _2: _Int) -> int: ...
    def nfp_digest_describe(self, _0: Any, _1: _Int, _2: _Int, _3: _Int, _4: Any, _5: Any) -> None: ...
    def nfp_digest_describe_all(
        self, _0: Any, _1: Any, _2: Any, _3: Any, _4: Any, _5: _Int, _6: Any, _7: Any
    ) -> None: ...
    def nfp_digest_ids(self, _0: Any, _1: _Int, _2: Any) -> None: ...
    def nfp_digest_siphash(self, _0: Any, _1: _Int, _2: Any) -> int: ...
    def nfp_drain(self, _0: Any, _1: _Int, _2: Any, _3: _Int, _4: Any, _5: _Int, _6: Any) -> int: ...
    def nfp_drain_publish(self, _0: Any, _1: _Int) -> None: ...
    def nfp_event_open(self, _0: Any, _1: _Int, _2: _Int, _3: _Int) -> int: ...
    def nfp_event_set_flags(self, _0: Any, _1: _Int) -> None: ...
    def nfp_event_set_precision(self, _0: Any, _1: _Int) -> None: ...
    def nfp_flow_match(self, _0: Any, _1: Any, _2: Any, _3: _Int, _4: Any) -> None: ...
    def nfp_forward_begin(self, _0: _Int) -> None: ...
    def nfp_forward_end(self) -> None: ...
    def nfp_frame_common_write(self, _0: Any, _1: _Int) -> int: ...
    def nfp_frame_rows(self, _0: Any, _1: _Int, _2: Any, _3: Any) -> int: ...
    def nfp_frame_write(self, _0: _Int, _1: _Int, _2: _Int, _3: Any, _4: _Int, _5: _Int, _6: Any, _7: _Int) -> int: ...
    def nfp_inject(self, _0: Any, _1: Any) -> int: ...
    def nfp_instruction_decode(self, _0: Any, _1: _Int, _2: _Int, _3: Any) -> int: ...
    def nfp_instructions_decode(self, _0: Any, _1: _Int, _2: _Int, _3: Any, _4: _Int) -> int: ...
    def nfp_launch_hold(self, _0: Any) -> int: ...
    def nfp_launch_release(self, _0: Any) -> int: ...
    def nfp_launch_start(self, _0: Any) -> int: ...
    def nfp_launch_to_entry(self, _0: Any) -> int: ...
    def nfp_mailbox_ask(self, _0: Any, _1: _Int, _2: Any, _3: _Int, _4: _Int, _5: Any) -> int: ...
    def nfp_mailbox_send(self, _0: Any, _1: _Int) -> None: ...
    def nfp_otlp_batch_links(self, _0: Any, _1: Any, _2: Any, _3: _Int, _4: Any) -> None: ...
    def nfp_otlp_encode(self, _0: Any, _1: _Int, _2: Any, _3: _Int, _4: Any) -> None: ...
    def nfp_otlp_packet_links(self, _0: Any, _1: Any, _2: _Int, _3: Any) -> None: ...
    def nfp_otlp_prepare(self, _0: Any) -> int: ...
    def nfp_otlp_scale_links(self, _0: Any, _1: _Int, _2: Any) -> None: ...
    def nfp_otlp_trace_ids(self, _0: Any, _1: Any, _2: _Int, _3: Any) -> None: ...
    def nfp_pipeline_costs(self, _0: Any, _1: Any, _2: _Int) -> int: ...
    def nfp_pipeline_count(self, _0: Any, _1: Any) -> None: ...
    def nfp_pipeline_count_anew(self, _0: Any, _1: _Int) -> None: ...
    def nfp_pipeline_counter_costs(self, _0: Any, _1: Any, _2: _Int) -> int: ...
    def nfp_pipeline_create(self, _0: Any, _1: _Int) -> Any: ...
    def nfp_pipeline_destroy(self, _0: Any) -> None: ...
    def nfp_pipeline_end_threads(self, _0: Any, _1: Any, _2: _Int) -> None: ...
    def nfp_pipeline_feed(self, _0: Any, _1: _Int, _2: Any, _3: _Int) -> int: ...
    def nfp_pipeline_feed_parts(self, _0: Any, _1: Any, _2: _Int, _3: Any, _4: _Int) -> int: ...
    def nfp_pipeline_finish(self, _0: Any) -> None: ...
    def nfp_pipeline_roles(self, _0: Any, _1: Any, _2: _Int) -> int: ...
    def nfp_pipeline_take(self, _0: Any, _1: Any) -> None: ...
    def nfp_pipeline_take_part(self, _0: Any, _1: Any) -> None: ...
    def nfp_read_filters(self, _0: _Int, _1: Any, _2: _Int, _3: Any, _4: _Int) -> int: ...
    def nfp_read_thread_base(self, _0: _Int, _1: Any) -> int: ...
    def nfp_readings_judge(self, _0: Any, _1: Any, _2: _Int, _3: Any) -> int: ...
    def nfp_repeats_count(self, _0: Any, _1: Any) -> None: ...
    def nfp_repeats_create(self, _0: _Int, _1: _Int, _2: _Int) -> Any: ...
    def nfp_repeats_destroy(self, _0: Any) -> None: ...
    def nfp_repeats_look(self, _0: Any, _1: Any, _2: Any, _3: _Int, _4: Any) -> None: ...
    def nfp_repeats_mark(self, _0: Any, _1: Any, _2: _Int, _3: Any, _4: _Int) -> None: ...
    def nfp_stamps_bound(self, _0: Any, _1: _Int, _2: _Int, _3: _Int) -> int: ...
    def nfp_statistics_add(self, _0: Any, _1: Any) -> int: ...
    def nfp_statistics_call_counts(self, _0: Any, _1: Any, _2: _Int) -> None: ...
    def nfp_statistics_costs(self, _0: Any, _1: Any, _2: _Int) -> int: ...
    def nfp_statistics_create(self) -> Any: ...
    def nfp_statistics_destroy(self, _0: Any) -> None: ...
    def nfp_statistics_functions(self, _0: Any) -> int: ...
    def nfp_statistics_histogram(self, _0: Any, _1: _Int, _2: _Int, _3: Any, _4: _Int) -> int: ...
    def nfp_statistics_merge(self, _0: Any, _1: Any) -> int: ...
    def nfp_statistics_origins(self, _0: Any, _1: Any) -> None: ...
    def nfp_statistics_prior(self, _0: Any) -> Any: ...
    def nfp_statistics_quantile(self, _0: Any, _1: _Int, _2: _Int, _3: SupportsFloat) -> int: ...
    def nfp_statistics_self_cost(self, _0: Any, _1: _Int) -> int: ...
    def nfp_statistics_summary(self, _0: Any, _1: _Int, _2: _Int, _3: Any) -> None: ...
    def nfp_stop_and_change(self, _0: Any, _1: Any, _2: _Int, _3: Any, _4: _Int) -> int: ...
    def nfp_sweep_begin(self, _0: Any, _1: _Int, _2: _Int) -> None: ...
    def nfp_sweep_begin_last(self, _0: Any, _1: Any, _2: _Int, _3: _Int) -> None: ...
    def nfp_sweep_take(self, _0: Any, _1: Any, _2: _Int, _3: Any) -> int: ...
    def nfp_threads_free(self, _0: Any, _1: Any, _2: Any, _3: _Int) -> None: ...
    def nfp_threads_gone(self, _0: _Int, _1: Any, _2: _Int, _3: Any) -> None: ...
    def nfp_ticks_now(self) -> int: ...
    def nfp_trampoline_bytes(self, _0: _Int) -> int: ...
    def nfp_trampoline_write(self, _0: _Int, _1: Any, _2: Any, _3: _Int) -> int: ...

ffi: _FFI
lib: _Lib
