// SPDX-License-Identifier: Apache-2.0
// The session: everything that target and monitor share, in one sealed memory file (memfd), and the
// thread block that only the target uses. The monitor trusts nothing it reads here.
//
//   0         header (one page)
//   4 KiB     capture programs, one per receive, transmit or drop function   64 x 64 B
//   8 KiB     thread table                                    1,024 x 256 B
//   1 MiB     probe table: what is patched, and how to undo it   262,144 x 128 B, sparse
//   40 MiB    trampolines: executable in the target, writable only in the monitor   216 MiB, sparse
//   256 MiB   rings, one per thread table entry               1,024 x ring_stride, sparse
#ifndef NFPROBE_SESSION_H
#define NFPROBE_SESSION_H

#define NFP_SESSION_VERSION 10
#define NFP_SESSION_MAGIC 0x31764250464e0001 // "\1\0NFPBv1": changes with the byte order, too
#define NFP_PROGRAM_OFFSET 4096
#define NFP_PROGRAM_COUNT 64
#define NFP_THREAD_TABLE_OFFSET 8192
#define NFP_THREAD_COUNT 1024
#define NFP_PROBE_TABLE_OFFSET (1 << 20)
#define NFP_PROBE_COUNT 262144
#define NFP_ARENA_OFFSET (40 << 20)
#define NFP_ARENA_BYTES (216 << 20)
#define NFP_RING_OFFSET (256 << 20)

// Loss classes: counters in the thread table and the sp word of a LOST record.
#define NFP_LOST_CALL 0
#define NFP_LOST_PACKET 1
#define NFP_LOST_POLL 2
#define NFP_LOST_CLASSES 3

// Gate bits: a trampoline whose bit is clear goes straight on to the function.
#define NFP_GATE_OUTER 1   // receive, transmit, drop and chosen functions
#define NFP_GATE_INNER 2   // inner functions, closed while detail is not wanted
#define NFP_GATE_PACKETS 4 // receive, transmit and drop write packet records
#define NFP_GATE_LATE 8 // transmit and drop write those of packets that deserve it (native/probe/late.c)
#define NFP_GATE_AUTO 16   // the target opens and closes its inner gates itself (native/probe/detail.c)
#define NFP_GATE_COUNTED 128 // of a thread only: receive functions read its counters, too

// In struct nfp_capture_policy.
#define NFP_LATE_NEVER 0xffffffffffffffff
#define NFP_SAMPLE_ALL 0x100000000
#define NFP_TIMED_EVERY 61 // of so many calls of the probes' C code one is timed (native/probe/timed.c)

// The thread block, private memory of the target that reads as zero (gate closed) in a forked child.
#define NFP_THREAD_GATE 0
#define NFP_THREAD_CURSOR 8
#define NFP_THREAD_LIMIT 16
#define NFP_THREAD_SHARED 48
#define NFP_THREAD_SLOW 56
#define NFP_THREAD_RECEIVE_EXIT 64
#define NFP_THREAD_PACKETS_ENTRY 72
#define NFP_THREAD_PACKETS_EXIT 80
#define NFP_THREAD_TIMED_STEP 121
#define NFP_THREAD_UNTIL_TIMED 122
#define NFP_THREAD_HANDING 124
#define NFP_THREAD_COUNTED_ENTRY 168
#define NFP_THREAD_COUNTED_EXIT 176
#define NFP_THREAD_SHARES 192
#define NFP_THREAD_POLLED 256
#define NFP_THREAD_BYTES 2304
// A queue is known by its hash (native/probe/queue.h): 6 bits say its slot, 16 tell the queues of one slot apart.
#define NFP_QUEUE_SLOTS 64
#define NFP_POLLED_SHIFT 5 // bytes of a slot
#define NFP_QUEUE_HASH 0x9e3779b1
#define NFP_QUEUE_SHIFT 10
#define NFP_QUEUE_MARK_BITS 16
// What thunk.S of native/probe/arch knows of the probe library's memory and of struct nfp_program.
#define NFP_LIBRARY_PROGRAMS 16
#define NFP_PROGRAM_PLAIN 55
#define NFP_PROGRAM_SHIFT 6
// Offsets in struct nfp_thread_shared that the templates use.
#define NFP_SHARED_EMPTY_POLLS 64
#define NFP_SHARED_EMPTY_TICKS 72

#include "arch/arch.h"
#include "record.h"

#ifndef __ASSEMBLER__
// cdef begin
enum nfp_session_state {
	NFP_STATE_NEW = 0,      // memory made, nothing else
	NFP_STATE_READY = 1,    // the helper thread waits for commands
	NFP_STATE_ARMED = 2,    // gates are open
	NFP_STATE_SILENT = 3,   // gates are closed, the helper has left (detached, or the monitor died)
};

enum nfp_command {
	NFP_COMMAND_NONE = 0,
	NFP_COMMAND_MAP_ARENA = 1,       // argument: address, file offset, bytes. result: 0 or -errno
	NFP_COMMAND_REGISTER_FRAMES = 2, // argument: address of unwind rows in an arena. result: 0 or -errno
	NFP_COMMAND_OPEN = 3, // argument: gate bits
	NFP_COMMAND_CLOSE = 4,
	NFP_COMMAND_END_TURNS = 19, // threads record their turns to the end, and no other ones
	NFP_COMMAND_LEAVE = 5, // close gates and end the helper thread
	NFP_COMMAND_SYNC_CORE = 6, // argument: enum nfp_sync. result: 0 or -errno
	NFP_COMMAND_MAP_FILE = 9, // argument: address, bytes; message: path. result: 0 or -errno
	NFP_COMMAND_COUNTERS =
	    16, // result: a socket's descriptor in the target, for the monitor to take, or -errno
	// argument: thread table index, number of counters (0: none). The descriptors of its counters come through the
	// socket; or argument 2 is the address of an array of pages that are in the target. Argument 3: how often the
	// counters were changed before, which the readings say. result: 0 or -errno
	NFP_COMMAND_COUNT = 17,
	NFP_COMMAND_REGISTER_CODE = 7, // argument: address, bytes of an ELF object. result: 0 or -errno
	NFP_COMMAND_CALIBRATE =
	    8, // argument: address of a function without probe, and of one with. result: 0 or -errno
	// argument: address of a function, probed or not; rounds. What its calls count, by the counters that were given to thread
	// table index NFP_THREAD_COUNT, which is the helper thread. result: 0 or -errno
	NFP_COMMAND_CALIBRATE_COUNTERS = 18,
};
enum nfp_sync {
	NFP_SYNC_REGISTER = 0, // for the next one; -errno where the kernel has none
	NFP_SYNC_CORES = 1, // every CPU that runs the target sees the code as it is written
	NFP_SYNC_KEEP_TRAP = 2, // remember the target's SIGTRAP action
	NFP_SYNC_MEND_TRAP = 3, // put it back when a breakpoint of ours made the kernel take it away
	NFP_SYNC_IGNORE_TRAP = 4, // ignore SIGTRAP again, where the injection made the kernel forget that
};

// What deserves to be identified, by native/probe/late.c.
struct nfp_capture_policy {
	uint64_t late_ticks; // packets of this age and older; NFP_LATE_NEVER: none
	uint64_t sample; // so many of 2^32 batches are drawn; NFP_SAMPLE_ALL: every one
};

struct nfp_session_header {
	uint64_t magic;
	uint32_t version;
	uint32_t target_pid; // as the target sees itself
	uint64_t total_bytes;
	uint64_t ring_bytes;
	uint64_t ring_stride;
	uint32_t state; // enum nfp_session_state
	uint32_t epoch; // counts attaches
	uint32_t threads; // thread table entries ever used
	uint32_t probes; // probe table entries ever used
	uint32_t arenas; // entries of `arena`
	uint32_t tls_offset; // of the thread block pointer from the thread base, as a signed number
	// Command mailbox. The monitor writes the command, then adds one to `request` and wakes it (futex);
	// the helper sets `reply` to the same number when result is valid.
	uint32_t request;
	uint32_t reply;
	uint32_t command;
	int32_t result;
	uint64_t argument[4];
	uint64_t helper_address; // of nfp_helper_main in the target, for the next attach
	uint64_t digest_key[2];
	uint64_t arena_used; // bytes of the trampoline region given out
	uint32_t unregistered[3]; // NFP_LOST_CLASSES: records lost because the thread table was full
	uint32_t helper_tid;
	// Answer to NFP_COMMAND_CALIBRATE: of so many calls, ticks between their stamps and ticks added in all.
	uint32_t calibrated_calls;
	uint32_t calibrated_inside_ticks;
	uint32_t calibrated_added_ticks;
	// Address in the target of a word that is 1 there, and 0 in a forked child: only a process that runs on the
	// target's own memory reads the 1 as well.
	uint64_t kept_address;
	struct nfp_capture_policy late; // of threads that have no entry in the thread table yet
	// With NFP_GATE_AUTO: after a batch of this age the next ones are detailed (0: none is), and one of so many is.
	uint64_t detail_slow_ticks;
	uint64_t detail_one_in;
	uint64_t buffers_start, buffers_bytes; // readable memory of all buffers that are named by numbers
	uint64_t
	    pending; // offset in a receive function's argument of the structures that it fills (native/probe/numbered.c)
	uint32_t
	    node; // offset in a transmit or drop function's second argument of 32 bits that name its node; 0: none
	uint32_t nodes_reserved;
	char message[512]; // why the helper failed, one sentence
	struct nfp_arena {
		uint64_t address; // in the target
		uint64_t offset; // in this file
		uint64_t bytes;
		uint64_t used;
	} arena[64];
	// Answer to NFP_COMMAND_CALIBRATE_COUNTERS: in so many calls, what each counter counted in all, and between the
	// readings of their probes.
	uint32_t counted_calls;
	uint32_t counted_reserved;
	uint64_t counted_in_all[NFP_COUNTER_SLOTS];
	uint64_t counted_between[NFP_COUNTER_SLOTS];
	// What each counter counts in the probe of a poll that returned nothing: left out of the readings of threads that are
	// given counters from now on.
	int32_t counted_polls[NFP_COUNTER_SLOTS];
	// A bit for each thread table entry: 1: nobody has it. The target clears bits, the monitor sets them. Only the target
	// reads them.
	uint64_t free_threads[16]; // NFP_THREAD_COUNT / 64
};

enum nfp_thread_state { NFP_THREAD_FREE = 0, NFP_THREAD_USED = 1 };

struct nfp_thread_shared {
	// Written by the thread, rarely.
	uint32_t state; // enum nfp_thread_state
	uint32_t tid; // as the target sees it
	uint64_t start_ticks; // written after tid; the monitor clears it before it frees the entry
	uint64_t lost[3]; // NFP_LOST_CLASSES: records not written because the ring was full
	char name[16];
	uint64_t handed_over_packets; // to queues of other threads
	// Written by the thread, once per poll or batch.
	uint64_t empty_polls;
	uint64_t empty_ticks;
	uint64_t batches; // polls that returned packets
	uint64_t received_packets;
	uint64_t transmit_calls;
	uint64_t transmitted_packets; // accepted by the transmit function
	uint64_t refused_packets; // handed to it and not accepted
	uint64_t dropped_packets; // handed to a drop function
	// Written by the monitor: everything before `tail` has been read.
	uint64_t tail;
	struct nfp_capture_policy late;
	uint64_t taken_over_packets; // written by the thread: from its queues
	uint64_t punted_packets; // written by the thread: handed to a function that punts
	// Written by the thread: of the calls of probe code that it has timed (native/probe/timed.c).
	uint64_t timed_calls;
	uint64_t timed_ticks;
	uint64_t reserved1;
	// Written by the slow path of the thread: a lower bound of its position.
	uint64_t position;
	// Written by the thread in batches that deserve it (late.c).
	uint64_t identified_packets;
	uint64_t unplaced_packets; // of these, packets that it has not received itself, or long ago
	uint64_t unheld_packets; // not identified: too many in one call, or their bytes did not stay
	uint64_t checked_packets; // read before and after their transmit call
	uint64_t differing_packets; // of these, those of which more had changed than was copied before
	uint64_t copying; // so many of their first bytes are copied before the call since then
	uint64_t checked_calls;
};

enum nfp_role {
	NFP_ROLE_CALL = 0,
	NFP_ROLE_RECEIVE = 1,
	NFP_ROLE_TRANSMIT = 2,
	NFP_ROLE_DROP = 3,
	// Of programs that work on messages (native/core/message.c).
	NFP_ROLE_MESSAGE_SCOPE = 4, // its call is the batch of the messages that are described inside it
	NFP_ROLE_MESSAGE =
	    5, // is handed a message: received when inside MESSAGE_SCOPE, else made by the program
	NFP_ROLE_SEND = 6, // sends a message to one receiver; captures its buffer << 16 | message id
	NFP_ROLE_LENGTH = 7, // captures the length of the message that is described next
	NFP_ROLE_NUMBER = 8, // captures its message id
	// Of any program (native/core/batch.c).
	NFP_ROLE_LOOP_ITERATION = 9, // what runs from one of its calls to the next is a batch of one
	// Gives buffers back: drops those that were received and not handed on; others are no packets any more.
	NFP_ROLE_FREE = 10,
	NFP_ROLE_RECEIVE_POOLED = 11, // of a pipeline only: RECEIVE of buffers that come from a pool
	// Takes packets over that another call has received: a batch of packets that are known (native/core/handover.c).
	NFP_ROLE_DEQUEUE = 12,
	// Puts packets into queues of other threads, where they are taken over; what does not fit it drops (handover.c).
	NFP_ROLE_HAND_OVER = 13,
	// Punts: hands packets that were received to the host's network stack, or to a program there.
	NFP_ROLE_PUNT = 14,
	// Takes packets in that may stay: they are given back, or go on inside others (native/core/match.c).
	NFP_ROLE_KEEP = 15,
	// Takes packets in and sends others in their place.
	NFP_ROLE_REPLACE = 16,
	// Of programs one thread of which keeps the others from running (native/core/barrier.c).
	NFP_ROLE_COMMAND = 17, // is handed a text that says what is done in it
	NFP_ROLE_HOLD = 18, // returns when the others stand still; is handed a text, too
	NFP_ROLE_RELEASE = 19, // lets them go
	NFP_ROLE_LAST = 19,
};
// cdef end
// Whether calls of the role say which thread holds the others, and nothing of packets.
static inline int nfp_role_is_of_barrier(uint32_t role)
{
	return role == NFP_ROLE_COMMAND || role == NFP_ROLE_HOLD || role == NFP_ROLE_RELEASE;
}
// cdef begin
enum nfp_count_from {
	NFP_COUNT_RETURN = 0,
	NFP_COUNT_ARGUMENT = 1,
	NFP_COUNT_FIXED = 2,
	NFP_COUNT_MEMORY = 3, // the batch structure says it
};
// When a receive function has received something, as its return value says.
enum nfp_when { NFP_WHEN_NONZERO = 0, NFP_WHEN_ZERO = 1, NFP_WHEN_ALWAYS = 2 };
// Why a program was switched off (native/probe/validate.c).
enum nfp_verdict {
	NFP_VERDICT_NONE = 0,
	NFP_VERDICT_COUNT_UNREADABLE = 1, // offence: the address
	NFP_VERDICT_COUNT_TOO_LARGE = 2, // the count
	NFP_VERDICT_POINTERS_UNREADABLE = 3, // the address
	NFP_VERDICT_PACKET_UNREADABLE = 4, // the packet pointer
	NFP_VERDICT_LENGTH_WRONG = 5, // the length
	NFP_VERDICT_NUMBER_WRONG = 6, // the number that would name a buffer
};

// What a receive, transmit or drop probe reads: how many packets, where their buffers are, where the
// headers are in a buffer. Arguments are numbered from 0 (arch/arch.h). 255 means "not there".
// cdef end
#define NFP_ABSENT 255
#define NFP_NO_OFFSET 0xffff // instead of an offset of 16 bits
#define NFP_LATE_NUMBERS 4094 // packets of one receive call that are named by numbers
#define NFP_NODE_PROGRAM                                                                                     \
	255 // instead of a program's number: the function is a node, whose third argument is a frame
#define NFP_CAPACITY 254 // instead of requested_argument: as many as fit, packets_max
// cdef begin
struct nfp_program {
	uint8_t role; // enum nfp_role
	uint8_t count_from; // enum nfp_count_from: packets received, accepted or dropped
	uint8_t count_argument; // for NFP_COUNT_ARGUMENT; for NFP_COUNT_FIXED the number
	uint8_t requested_argument; // packets asked for or handed over
	uint8_t pointers_argument; // array of buffer pointers
	uint8_t
	    pointers_single; // 1: the argument is one buffer pointer, not an array; of a text: it points to a vector
	uint8_t length_width; // bytes of the packet length field: 2 or 4
	uint8_t segment_width; // bytes of the first segment's length field: 2 or 4
	uint32_t count_mask; // the return value's valid bits
	uint16_t data_pointer; // offset in the buffer of the pointer to its data
	uint16_t data_offset; // offset of a 16-bit number added to that pointer, or 0xffff
	uint16_t length; // offset of the packet length
	uint16_t segment_length; // offset of the first segment's length (bytes that may be read)
	uint16_t arrival; // offset of a 64-bit arrival stamp, or 0xffff
	uint8_t arrival_unit; // NFP_ARRIVAL_*
	uint8_t link_layer; // NFP_LINK_* of headers.h: 0 Ethernet, 1 IP; 0x80 added: look inside tunnels
	uint16_t packets_max; // more in one call are not described, and counted
	// Where pointers_argument is a batch, a structure that holds the number of packets and the array of pointers:
	uint8_t count_width; // bytes of the number: 2, 4 or 8; 0: it is no batch
	uint8_t when; // enum nfp_when
	uint16_t count_offset; // of the number, in the structure
	uint16_t pointers_offset; // of the array
	uint16_t checked; // 1: somebody described it, so it is not trusted
	// Written by the target.
	uint16_t verdict; // enum nfp_verdict
	uint32_t proven; // calls whose packets were plausible
	uint64_t offence; // what the verdict is about
	// More of what it reads:
	uint16_t holders; // of a buffer that is freed: offset of a 16-bit number of holders, or 0xffff
	uint16_t arrival_flags; // offset of a 64-bit word that says whether there is a stamp, or 0xffff
	uint8_t arrival_bit; // of that word
	uint8_t pooled; // 1: packets stay where they are, readable, when they have been transmitted or freed
	uint8_t queue_argument; // of a receive function: which queue it polls
	uint8_t plain; // 1: native/probe/fast_path.c can serve it
	// Where packets are named by numbers of 32 bits, not by pointers (native/probe/numbered.c): a buffer is at
	// buffers_start + (number << number_shift), its bytes are inside it, at data_pointer and the signed data_offset. A
	// receive function only says how many there are: they are in the structures that it has filled (numbered.c).
	uint16_t
	    array_offset; // in the batch structure, of a 16-bit offset of its array; 0xffff: pointers_offset
	uint16_t
	    next_number; // offset in the buffer of the number of the packet's next one; DEQUEUE: pointer to pointer
	uint16_t next_flags; // ... which is there when a bit of this 32-bit word is set
	uint8_t next_bit;
	// 0: pointers. Else `holders` is the offset of the number, 32 bits, of the interface that received the packet, and
	// `arrival_flags` that of the interface that sends it or of why it is dropped, of `arrival_bit` bytes, 2 or 4; 0xffff:
	// not known.
	uint8_t number_shift;
};

// One patch site. Written before the target's code is, so that any later monitor can undo it.
enum nfp_site_kind {
	NFP_SITE_CODE = 0,
	NFP_SITE_GOT = 1,
	NFP_SITE_SINGLE = 2, // code, exactly one instruction is displaced: needs no stop
};
struct nfp_probe {
	uint64_t function; // address
	uint64_t site; // address of the first changed byte
	uint64_t trampoline; // address
	uint64_t module; // hash of build id, path and base: the entry is reused only when it is equal
	uint32_t id; // function id, the index of this entry
	uint8_t kind; // enum nfp_site_kind
	uint8_t length; // changed bytes
	uint8_t armed; // the new bytes are, or may be, in place
	uint8_t shape; // enum nfp_role and template of the trampoline
	uint8_t old_bytes[32];
	uint8_t new_bytes[32];
	// Padding that holds the jump to the trampoline when the site has room for a short jump only; 0: none.
	uint64_t island;
	uint8_t island_old[8]; // five are used
	uint8_t island_new[8];
};

// cdef end
// What a thread knows of the queue that it polled last, of those that share a slot.
struct nfp_polled {
	uint64_t
	    emptied; // entry of the last poll that left it empty << 16 | 16 bits that tell queues of one slot apart
	uint64_t full_since; // this word when the polls below began
	uint32_t queue; // of these, as nfp_queue_of has it
	uint32_t polls; // one after another that came back full, at most as many as make it saturated
	uint64_t reserved; // never more than one cache line
};

struct nfp_thread {
	// Two cache lines that each batch needs.
	uint32_t gate;
	uint32_t index; // in the thread table
	uint64_t cursor; // address of the next slot (ring.h)
	uint64_t limit; // of `cursor`, as templates compare it; 0: no ring of this session
	uint64_t room; // the same as C compares it; `limit` is lower while counters are read
	uint64_t base; // where laps with an even number are written
	uint64_t ring_bytes;
	struct nfp_thread_shared *shared;
	void *slow;
	void *receive_exit;
	void *packets_entry;
	void *packets_exit;
	uint32_t detail_left; // batches that are detailed because one before them was slow
	uint32_t detail_turn; // batches since one was detailed for what is usual
	// Of the batch that the thread works on (native/probe/queue.h), in ticks: the entry of the poll that returned
	// it, and what the age of its packets is counted from: since when they can have waited. 0 before the first one.
	uint64_t batch_start;
	uint64_t batch_earliest;
	uint64_t handed_ticks; // exit of the last transmit or drop call
	uint8_t counted; // number of counters that are read with each record
	uint8_t
	    timed_step; // 1: `until_timed` counts down; 0: never, as while there are counters, which would count that
	uint16_t until_timed; // calls of probe code before the next one that is timed
	uint32_t handing; // low sp of the transmit or drop call that late capture looks at; 0: none
	// What few batches need.
	uint64_t kept; // in the first block: 1, and 0 in a forked child
	uint64_t lost_pending[NFP_LOST_CLASSES]; // lost since the last LOST record
	void *counter_pages; // of struct nfp_counter_pages, or 0
	void *counted_entry; // of receive functions, with NFP_GATE_COUNTED
	void *counted_exit;
	uint64_t tokens; // native/probe/ring_space.h
	// What calls of nodes say their frames' shares by, while a turn has several batches; else 0 (native/probe/share.c).
	void *shares;
	uint64_t
	    ending; // `cursor` behind the last receive call, once turns are to end (native/probe/ending.c)
	// By the queue's slot. Empty polls write when that was.
	_Alignas(64) struct nfp_polled polled[NFP_QUEUE_SLOTS];
};

#define NFP_ASSERT_OFFSET(type, member, offset)                                                              \
	_Static_assert(offsetof(struct type, member) == (offset),                                            \
	               #member " moved: the templates or the other half rely on it")
NFP_ASSERT_OFFSET(nfp_thread, gate, NFP_THREAD_GATE);
NFP_ASSERT_OFFSET(nfp_thread, cursor, NFP_THREAD_CURSOR);
NFP_ASSERT_OFFSET(nfp_thread, limit, NFP_THREAD_LIMIT);
NFP_ASSERT_OFFSET(nfp_thread, shared, NFP_THREAD_SHARED);
NFP_ASSERT_OFFSET(nfp_thread, slow, NFP_THREAD_SLOW);
NFP_ASSERT_OFFSET(nfp_thread, receive_exit, NFP_THREAD_RECEIVE_EXIT);
NFP_ASSERT_OFFSET(nfp_thread, packets_entry, NFP_THREAD_PACKETS_ENTRY);
NFP_ASSERT_OFFSET(nfp_thread, packets_exit, NFP_THREAD_PACKETS_EXIT);
NFP_ASSERT_OFFSET(nfp_thread, timed_step, NFP_THREAD_TIMED_STEP);
NFP_ASSERT_OFFSET(nfp_thread, until_timed, NFP_THREAD_UNTIL_TIMED);
NFP_ASSERT_OFFSET(nfp_thread, handing, NFP_THREAD_HANDING);
NFP_ASSERT_OFFSET(nfp_thread, counted_entry, NFP_THREAD_COUNTED_ENTRY);
NFP_ASSERT_OFFSET(nfp_thread, counted_exit, NFP_THREAD_COUNTED_EXIT);
NFP_ASSERT_OFFSET(nfp_thread, shares, NFP_THREAD_SHARES);
NFP_ASSERT_OFFSET(nfp_thread, polled, NFP_THREAD_POLLED);
NFP_ASSERT_OFFSET(nfp_thread_shared, empty_polls, NFP_SHARED_EMPTY_POLLS);
NFP_ASSERT_OFFSET(nfp_thread_shared, empty_ticks, NFP_SHARED_EMPTY_TICKS);
NFP_ASSERT_OFFSET(nfp_thread_shared, tail, 128);
NFP_ASSERT_OFFSET(nfp_thread_shared, position, 192);
_Static_assert(sizeof(struct nfp_thread) == NFP_THREAD_BYTES, "a thread block is 36 cache lines");
_Static_assert(sizeof(struct nfp_polled) == 1 << NFP_POLLED_SHIFT, "template_packets.S");
_Static_assert(sizeof(struct nfp_thread_shared) == 256, "a thread table entry is four cache lines");
_Static_assert(sizeof(struct nfp_program) == 64, "a capture program is one cache line");
_Static_assert(sizeof(struct nfp_probe) == 128, "a probe table entry is two cache lines");
_Static_assert(sizeof(struct nfp_session_header) <= NFP_PROGRAM_OFFSET, "the header is one page");
_Static_assert(sizeof(((struct nfp_session_header *)0)->free_threads) * 8 == NFP_THREAD_COUNT, "a bit each");
#endif
#endif
