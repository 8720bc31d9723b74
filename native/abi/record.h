// SPDX-License-Identifier: Apache-2.0
// The record: the one fixed-size unit that a probe writes and the monitor reads. Both halves and the
// assembler templates include this file, Python reads it through cffi; proto/README.md draws the bytes.
//
//   byte  0        8            12        16
//         | value  | tag        | sp      |
//                    | 0 (bit 31) | kind (7 bits, 24..30) | function id (24 bits, 0..23) |
//
// In a ring the low half of the slot's address is added to `tag`, which is stored last and with one store: a slot is
// committed when NFP_LAP_BIT is clear once the address is taken off again (ring.h). `value` and `sp` (the low half of the
// stack pointer at the function's entry) change their meaning with the kind (table below).
#ifndef NFPROBE_RECORD_H
#define NFPROBE_RECORD_H

#define NFP_RECORD_BYTES 16
#define NFP_RECORD_VALUE 0
#define NFP_RECORD_TAG 8
#define NFP_RECORD_SP 12

#define NFP_FUNCTION_BITS 24
#define NFP_FUNCTION_MASK 0xffffff
#define NFP_KIND_SHIFT 24
#define NFP_KIND_MASK 0x7f
#define NFP_LAP_BIT 0x80000000u

// kind                      value                         sp
#define NFP_ENTRY 0 // time, in ticks                stack pointer
#define NFP_EXIT 1 // time, in ticks                stack pointer
#define NFP_POLL_ENTRY 2 // time, in ticks                stack pointer
#define NFP_POLL_EXIT 3 // time, in ticks                packets returned | packets asked for << 16
#define NFP_VALUE 4 // the value captured by a call  stack pointer of the call (its EXIT follows)
#define NFP_LOST 5 // number of records lost here   loss class (session.h), or NFP_LOST_MISTIMED
#define NFP_UNWOUND 6 // time, in ticks                as EXIT: the call was left by unwinding
#define NFP_FILL 17 // nothing: the end of a lap    nothing; nfp_drain leaves these out
#define NFP_MARK 7 // time, in ticks                as ENTRY: a call whose end is not measured
// A packet is a PACKET record and, reserved together with it so that they are adjacent, the facts below it.
#define NFP_PACKET 8 // buffer address            length | position in its burst << 16
#define NFP_PACKET_ID 9 // digest   IP id | IP protocol << 16 | IP version << 24 (0: no IP) | marks << 28
#define NFP_PACKET_V4 10 // source | destination << 32 (host order)  source port | destination port << 16
#define NFP_PACKET_ARRIVAL 11 // arrival time stamp        unit (NFP_ARRIVAL_*)
#define NFP_PACKET_SRC6_HIGH                                                                                 \
	12 // bytes 0..7 of the source, big endian value       source port | destination port << 16
#define NFP_PACKET_SRC6_LOW 13 // bytes 8..15 of the source                        0
#define NFP_PACKET_DST6_HIGH 14 // bytes 0..7 of the destination                    0
#define NFP_PACKET_DST6_LOW 15 // bytes 8..15 of the destination                   0

// Numbers that the NF gives interfaces and reasons, of a buffer that is named by a number. Each plus 1; 0: not known.
#define NFP_PACKET_NUMBERS                                                                                   \
	26 // of the interface that received it | << 32: of the one that sends it, or why it is dropped   0

// The second of several buffers of a packet that is handed on: where the first one was not received, the packet may be a copy
// of the one that was received in this.
#define NFP_PACKET_NEXT 28 // buffer address            0
// Directly behind the ENTRY, or VALUE, of a call whose frame holds packets of several batches of a turn, one for each; and of
// one whose packets are all of another batch than the last one (native/probe/share.c).
#define NFP_SHARE 27 // entry of the batch's receive call << 16 | its packets   stack pointer of the call

// A message's facts (broker): after PACKET (buffer: the topic's address) and PACKET_ID, its topic, 12 bytes a record.
#define NFP_PACKET_TOPIC 24 // 0                                                    bytes of the topic
#define NFP_PACKET_TEXT 25 // eight bytes of the topic                              four more

// Between POLL_ENTRY and POLL_EXIT: since when the packets of the batch can have waited (native/probe/queue.h).
#define NFP_POLL_QUEUE 16 // time, in ticks                 queue, 22 bits | NFP_QUEUE_* marks

// Behind POLL_QUEUE, where the packet that was received first bears a stamp in the processor's ticks: when it arrived.
#define NFP_BATCH_ARRIVAL 18 // arrival time stamp                 0

#define NFP_QUEUE_BITS 22
#define NFP_QUEUE_RECEIVED                                                                                   \
	(1u                                                                                                  \
	 << 29) // its packets were taken over: since when they can have waited to be received (native/probe/handoff.c)
#define NFP_QUEUE_UNDETAILED                                                                                 \
	(1u << 30) // the inner functions of the batch are not timed (native/probe/detail.c)
#define NFP_QUEUE_SATURATED (1u << 31) // the queue was not seen empty: since when they waited is not known

// Where not every packet is identified (native/probe/late.c):
#define NFP_PACKET_ORIGIN 30 // entry of its receive call; 0: not known   position in the received burst
// Behind PACKET_ORIGIN, of a packet that went from thread to thread:
#define NFP_PACKET_TAKEN                                                                                     \
	29 // entry of the call that took it over, 0: not known | << 16: thread that received it   position there
#define NFP_PACKET_VIA 23 // the same, of calls that took it over in between             0
#define NFP_BATCH_NOTE 31 // 0                                         NFP_NOTE_* of the batch that begins
#define NFP_NOTE_LATE 1 // its packets are described when they are handed on, and not all of them
#define NFP_NOTE_DRAWN 2 // it was drawn for the sample: all of them are
#define NFP_NO_POSITION 0xffffffffu

// Readings of performance counters, directly before the ENTRY or EXIT with the same sp, or the POLL_ENTRY or POLL_EXIT of
// a call at this sp: three kinds, of the first, second and third pair of counters. The tag has no function id but a check:
// the sum of both counters' lock words, which is another one when the kernel has changed anything in between; its lowest bit
// says that one was not counting.
#define NFP_COUNTERS 32 // low halves of two counters           as ENTRY or EXIT
#define NFP_COUNTERS_OFF 1 // in the check
// Its upper bits say which counters were read: how many times they had been changed in this session.
#define NFP_COUNTERS_CHANGE_SHIFT 18
#define NFP_COUNTERS_CHANGES 64 // then from 0 again

// Class of LOST records that only the monitor makes (native/core/stamps.c), of records whose time cannot be.
#define NFP_LOST_MISTIMED 255

// Marks of a PACKET_ID record: NFP_FACTS_* of headers.h.
#define NFP_PACKET_VERSION_SHIFT 24
#define NFP_PACKET_MARKS_SHIFT 28
#define NFP_VERSION_MESSAGE 15 // no IP packet, a broker's message
#define NFP_TEXT_BYTES 12 // of a topic in one record
#define NFP_TOPIC_RECORDS 7 // more of a topic is not written ...
#define NFP_TOPIC_READ_BYTES 1024 // ... and this is all that is read of it

#define NFP_ARRIVAL_TICKS 0 // the processor's ticks
#define NFP_ARRIVAL_UNIX_NS 1
#define NFP_ARRIVAL_EITHER 2 // of a program only: one of these if it is plausible, else there is no stamp

#ifndef __ASSEMBLER__
#include <stddef.h>
#include <stdint.h>

// cdef begin
enum {
	NFP_COUNTER_SLOTS = 6, // counters that a probe reads, at most 8 ...
	NFP_COUNTER_PAIRS = 3, // ... and records with their readings: half as many, rounded up
};

struct nfp_record {
	uint64_t value;
	uint32_t tag;
	uint32_t sp;
};
// cdef end

#define NFP_COUNTERS_LAST (NFP_COUNTERS + NFP_COUNTER_PAIRS - 1)

_Static_assert(NFP_COUNTER_PAIRS == (NFP_COUNTER_SLOTS + 1) / 2, "two counters share a record");
_Static_assert(sizeof(struct nfp_record) == NFP_RECORD_BYTES, "a record is 16 bytes");
_Static_assert(offsetof(struct nfp_record, value) == NFP_RECORD_VALUE, "template.S stores the value here");
_Static_assert(offsetof(struct nfp_record, tag) == NFP_RECORD_TAG, "template.S stores the tag here");
_Static_assert(offsetof(struct nfp_record, sp) == NFP_RECORD_SP, "template.S stores the stack pointer here");

static inline uint32_t nfp_record_kind(const struct nfp_record *record)
{
	return record->tag >> NFP_KIND_SHIFT & NFP_KIND_MASK;
}

static inline uint32_t nfp_record_function(const struct nfp_record *record)
{
	return record->tag & NFP_FUNCTION_MASK;
}
#endif
#endif
