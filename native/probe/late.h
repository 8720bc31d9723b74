// SPDX-License-Identifier: Apache-2.0
// Late capture: which packets are identified when not all of them are, and from what. See late.c.
#ifndef NFPROBE_LATE_H
#define NFPROBE_LATE_H
#include "describe.h"
#include "library.h"

enum {
	NFP_LATE_POINTERS = 256, // received last, and of one transmit call; a power of two
	NFP_LATE_BATCHES = 256, // received last; a power of two
	NFP_LATE_COPY_BYTES = 192, // of a packet's headers, kept from the entry of a call
	NFP_LATE_FRAMES = 64, // of a turn, of which it is known how full they were
	NFP_LATE_FRAME_PACKETS = 256, // of one
	NFP_LATE_HEADER = 64, // bytes of a frame's beginning that are looked at at once
	NFP_LATE_PINS = 1024, // batches that were handed over last; a power of two
	NFP_LATE_TAKES = 64, // calls that took packets over last; a power of two
	NFP_LATE_TAKEN = 4096, // numbers of such packets; a power of two
};

// What the state of splitmix64 grows by for each number (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
// OOPSLA 2014).
#define NFP_WEYL 0x9e3779b97f4a7c15ull

// The packets of one call.
struct nfp_burst {
	uint64_t pointers; // address of their array, or the pointer of a single packet
	uint32_t count;
	uint32_t single;
	// Where buffers are named by numbers, else 0: how far a number is shifted, and the numbers. `pointers` is an array of
	// their buffers then, or 0 where they are not needed.
	uint32_t number_shift;
	const uint32_t *numbers;
};

struct nfp_late_batch {
	_Alignas(64) uint64_t start_ticks; // entry of its receive call
	uint64_t age_start_ticks; // since when its packets can have waited (queue.h)
	uint64_t spent_ticks; // of nfp_late, when it began
	uint64_t first; // position of its first pointer among all received
	uint64_t sum; // of its pointers, where the NF changes their order
	uint32_t count;
	uint32_t drawn;
	uint32_t gone; // of numbered buffers: all have been handed on
};

// A frame that was pending, and its packets then (numbered.c).
struct nfp_late_frame {
	uint64_t frame;
	uint32_t packets;
	uint32_t node; // that it is for
};

// A batch, packets of which were handed over to another thread (handoff.c). `number` is 0 while it is written.
struct nfp_late_pin {
	uint64_t number;
	uint64_t start_ticks, age_start_ticks;
	uint64_t handed_ticks; // entry of the call that put packets into queues
	uint32_t count, drawn;
	uint32_t thread; // that received it
	uint32_t via_count; // other threads that handed it over
	struct nfp_via via[NFP_VIAS_MAX];
};

// A call that took packets over.
struct nfp_late_take {
	uint64_t start_ticks;
	uint64_t spent_ticks; // of nfp_late, when it ended
	uint64_t first; // position of its first number among all that were taken
	uint32_t count;
};

// The batch of another thread.
struct nfp_handed_over {
	struct nfp_late_batch batch;
	uint32_t thread;
	uint32_t reused; // not known: since the call began another packet was received into the buffer
};

// Where a packet's bytes were at the entry of a call, as its buffer said.
struct nfp_late_seen {
	uint64_t place; // address | how many of them are of interest << NFP_SEEN_BITS
	uint32_t length; // of the packet
	uint32_t mark; // of some of the bytes: whether they are still the same
};
#define NFP_SEEN_BITS 56
#define NFP_SEEN_ADDRESS ((1ull << NFP_SEEN_BITS) - 1)

// How the arrays that a thread hands on are recognised as a batch, so that their pointers need not be kept once more. Each
// is given up for the next one when it turns out to be wrong.
enum nfp_late_order {
	NFP_ORDER_KEPT, // by their first and last pointers: they are as they were received
	NFP_ORDER_CHANGED, // by the sum of all: the NF sorts its batches
	NFP_ORDER_NONE, // not at all: the array does not last until the call's end
};

// What a thread keeps. Private memory of the target, one for each thread table entry, never on the NF's stack.
struct nfp_late {
	// One cache line that each batch needs.
	uint64_t received; // pointers ever kept
	uint64_t batches; // ever begun, but for those that were withdrawn (share.c)
	uint64_t spent_ticks; // ever, on identifying packets
	uint64_t draw_state; // of splitmix64, by which batches are drawn
	uint64_t
	    array; // of the call's pointers or numbers, when they are those of `whole` and not kept once more; else 0
	uint64_t whole; // 1 + the number of the batch that its packets are, as far as one can see; 0: of none
	uint32_t frame; // low sp of the transmit or drop call that was looked at; 0: none
	uint32_t count; // of its packets
	uint16_t until_check; // calls; 0 as well while all of them are copied
	uint8_t seen_packets; // where their bytes are is in `seen`; else their pointers, or where these stand
	uint8_t copied; // of these, so many of each packet are in `copies`
	uint8_t checks; // they are read again at its end, and compared
	uint8_t number_shift; // of the call's packets
	uint8_t order; // enum nfp_late_order: what is known of the arrays that the thread hands on
	uint8_t noted; // the monitor knows how this thread's packets are described
	// What few batches need.
	uint64_t place; // of the array of a call that is checked
	uint8_t headed; // heads of the call's packets are kept
	uint8_t chained; // one of them has several buffers
	uint8_t keeps_heads; // of every call: afterwards they cannot be told from what replaced them
	// One line that each batch of numbered buffers needs.
	_Alignas(64) uint32_t worked; // packets have been handed on since the last receive call (numbered.c)
	uint32_t frames_known; // after it
	uint32_t is_untagged; // the newest batch's numbers are in `numbers` alone (owner.c)
	uint32_t left; // packets of that batch that have left, from its first one on
	uint64_t entered_ticks; // the call that is looked at, of numbered buffers
	uint64_t call_ticks; // what the last one took
	uint64_t turn_first; // number of the turn's first batch (share.c)
	const struct nfp_program *input; // of the turn's last receive call
	uint64_t
	    taken_queue; // of its last call that took packets over; UINT64_MAX: packets were received since
	// The next ones are in the page of the lines above, as long as frames and numbers are few. Two addresses that were found to
	// be readable: of what says where the frames of receive calls are, and of the first of them with its number (numbered.c).
	_Alignas(64) uint64_t known_place;
	uint64_t known_entries;
	struct nfp_late_frame frames[NFP_LATE_FRAMES];
	_Alignas(64) uint32_t numbers[NFP_LATE_NUMBERS]; // received by one call (numbered.c)
	struct nfp_late_batch batch[NFP_LATE_BATCHES];
	_Alignas(64) uint64_t pointers[NFP_LATE_POINTERS]; // bursts of 32 are four lines, not five
	uint64_t held[NFP_LATE_POINTERS];
	// Of numbered buffers:
	uint64_t heads[NFP_LATE_POINTERS]; // the first 8 bytes of those that are handed on
	uint64_t marks[NFP_LATE_POINTERS]; // nfp_numbered_numbers of those whose heads are kept
	uint32_t handed[NFP_LATE_POINTERS]; // their numbers
	uint64_t named[NFP_LATE_NUMBERS]; // buffers of one call
	struct nfp_late_seen seen[NFP_LATE_POINTERS];
	uint64_t
	    arrivals[NFP_LATE_POINTERS]; // stamps of these, where the program knows a place for any; 0: none
	uint8_t copies[NFP_LATE_POINTERS][NFP_LATE_COPY_BYTES];
	uint8_t reread[NFP_LATE_COPY_BYTES]; // of one packet at the end of its call
	// Of packets that go from thread to thread (handoff.c):
	uint64_t pins, takes, taken; // ever
	uint64_t taken_next; // position where the next packet that leaves is looked for
	struct nfp_late_pin pin[NFP_LATE_PINS];
	struct nfp_late_take take[NFP_LATE_TAKES];
	uint32_t taken_numbers[NFP_LATE_TAKEN];
};

_Static_assert(offsetof(struct nfp_late, place) == 64, "what each batch needs is one cache line");

// Forgets what was received and learnt: another session or another thread begins with this block and thread table entry.
static inline void nfp_late_begin(struct nfp_thread *thread, uint32_t index)
{
	struct nfp_late *late = &nfp_library.late[index];
	thread->packets_entry = nfp_null_thread.packets_entry;
	thread->handing = 0;
	late->draw_state = nfp_library.header->digest_key[0] + ((uint64_t)index << 40) * NFP_WEYL;
	late->received = late->batches = late->spent_ticks = 0;
	late->array = late->whole = late->place = 0;
	late->frame = late->count = late->until_check = 0;
	late->seen_packets = late->copied = late->checks = 0;
	late->noted = late->order = 0;
	late->number_shift = late->headed = late->chained = late->keeps_heads = 0;
	late->worked = late->frames_known = late->left = 0;
	late->is_untagged = 0;
	late->known_place = late->known_entries = 0;
	late->call_ticks = 0;
	late->turn_first = 0;
	thread->shares = 0;
	late->taken_queue = UINT64_MAX;
	late->takes = late->taken = late->taken_next = 0; // pins go on: others may hold their numbers
}

static inline struct nfp_late *nfp_late_of(const struct nfp_thread *thread)
{
	return &nfp_library.late[thread->index];
}

// Position of the oldest pointer that is still kept.
static inline uint64_t nfp_late_oldest_kept(const struct nfp_late *late)
{
	return late->received > NFP_LATE_POINTERS ? late->received - NFP_LATE_POINTERS : 0;
}

static inline struct nfp_late_batch *nfp_late_batch_at(struct nfp_late *late, uint64_t number)
{
	return &late->batch[number % NFP_LATE_BATCHES];
}

static inline int nfp_late_is_own(const struct nfp_late *late, const struct nfp_late_batch *batch)
{
	return batch >= late->batch && batch < late->batch + NFP_LATE_BATCHES;
}

static inline uint64_t nfp_late_pointer_at(const struct nfp_late *late, uint64_t position)
{
	return late->pointers[position % NFP_LATE_POINTERS];
}

static inline void nfp_late_copy_pointers(uint64_t *restrict out, const uint64_t *restrict in, uint32_t count)
{
#pragma GCC unroll 8
	for (uint32_t i = 0; i < count; i++)
		out[i] = in[i];
}

static inline void nfp_late_copy_numbers(uint32_t *restrict out, const uint32_t *restrict in, uint32_t count)
{
	uint32_t i = 0;
	for (; i + 8 <= count; i += 8)
		__builtin_memcpy(out + i, in + i, 32);
	for (; i < count; i++)
		out[i] = in[i];
}

// Identifies the pointers in any order. Plain sums of neighbouring buffers are often equal, so bits are mixed.
static inline uint64_t nfp_late_sum(const uint64_t *pointers, uint32_t count)
{
	uint64_t sum = 0;
#pragma GCC unroll 8
	for (uint32_t i = 0; i < count; i++)
		sum += pointers[i] ^ pointers[i] >> 9;
	return sum;
}

// A receive call that was entered at `start_ticks` returns packets.
void nfp_late_receive(struct nfp_thread *thread, uint32_t function, struct nfp_burst burst,
                      uint64_t start_ticks);
// As above for numbered buffers: `count` of them stand in `numbers` already.
void nfp_late_receive_numbers(struct nfp_thread *thread, uint32_t function, uint32_t count,
                              uint64_t start_ticks);
// A transmit or drop call begins at `ticks` (0: not known); `frame`, its low sp, tells it from others.
void nfp_late_enter(struct nfp_thread *thread, const struct nfp_program *program, struct nfp_burst burst,
                    uint32_t frame, uint64_t ticks);
// The same for one that nfp_trusted_entry_thunk let pass: it has ended, and is looked at now.
void nfp_late_catch_up(struct nfp_thread *thread, struct nfp_burst burst, uint32_t frame);
// It has ended at `ticks` and handed on the first `count` packets.
void nfp_late_exit(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                   uint32_t frame, uint64_t ticks, uint32_t count);

// Whether `frame` is inside the call that is looked at, which hands on the same packets.
static inline int nfp_late_is_inside(const struct nfp_thread *thread, uint32_t frame)
{
	return thread->handing && (int32_t)(thread->handing - frame) > 0; // the same in thunk.S
}

// fast_path.c: whether the call that ends was let pass at its entry.
static inline int nfp_late_is_behind(const struct nfp_thread *thread, uint32_t frame)
{
	return thread->handing == frame && nfp_late_of(thread)->frame != frame;
}

// Calls are no longer examined.
static inline void nfp_late_leave(struct nfp_thread *thread)
{
	thread->handing = nfp_late_of(thread)->frame = 0;
}

// Whether packets that are handed to the call can be gone when it ends: only then it is looked at who they are.
static inline int nfp_late_sends_away(const struct nfp_program *program)
{
	const uint32_t others =
	    1u << NFP_ROLE_FREE | 1u << NFP_ROLE_KEEP | 1u << NFP_ROLE_REPLACE | 1u << NFP_ROLE_HAND_OVER;
	return !(others >> (program->role & 31) & 1);
}

// When the first packet of a receive call arrived, where it bears a stamp and packets may be read; 0: that is not known.
static inline uint64_t nfp_late_first_arrival(const struct nfp_thread *thread,
                                              const struct nfp_program *program, struct nfp_burst burst,
                                              uint64_t start_ticks)
{
	if (program->arrival == NFP_NO_OFFSET || !(thread->gate & NFP_GATE_LATE) || !burst.pointers ||
	    !burst.count)
		return 0;
	uint64_t first = burst.single ? burst.pointers : *(const uint64_t *)(uintptr_t)burst.pointers;
	return nfp_arrival_ticks(program, first, start_ticks);
}

// Whether packets of the batch that are handed on at `ticks` are identified.
static inline int nfp_late_is_wanted(const struct nfp_thread *thread, const struct nfp_late_batch *batch,
                                     uint64_t ticks)
{
	uint64_t late_ticks = __atomic_load_n(&thread->shared->late.late_ticks, __ATOMIC_RELAXED);
	return batch->drawn || ticks - batch->age_start_ticks >= late_ticks;
}

// Whether the array begins and ends as the batch did when it was received; both are equally long.
static inline int nfp_late_is_kept(const struct nfp_late *late, const struct nfp_late_batch *batch,
                                   const uint64_t *pointers)
{
	uint32_t last = batch->count - 1;
	return pointers[0] == nfp_late_pointer_at(late, batch->first) &&
	       pointers[last] == nfp_late_pointer_at(late, batch->first + last);
}

// fast_path.c: whether nothing more is to be done for a call that has ended at `ticks`, as far as that can be said at once.
// Most calls hand on the packets of one batch, which is young and not drawn.
static inline int nfp_late_pass(struct nfp_thread *thread, uint32_t frame, uint64_t ticks)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (thread->handing != frame)
		return 1;
	if (!late->whole || late->checks ||
	    nfp_late_is_wanted(thread, nfp_late_batch_at(late, late->whole - 1), ticks))
		return 0;
	nfp_late_leave(thread);
	return 1;
}

// The packets of the call, the next ones of the newest batch, have left.
static inline void nfp_late_leave_newest(struct nfp_late *late, struct nfp_late_batch *batch)
{
	late->left += late->count;
	batch->gone = late->left == batch->count;
}

// Whether nothing more is to be done for a call of numbered buffers that has ended at `ticks`: its packets are the next ones
// of the newest batch, which is young and not drawn.
static inline int nfp_late_pass_next(struct nfp_thread *thread, uint32_t frame, uint64_t ticks)
{
	struct nfp_late *late = nfp_late_of(thread);
	struct nfp_late_batch *batch = nfp_late_batch_at(late, late->whole - 1);
	if (thread->handing != frame || !late->number_shift || !late->array ||
	    nfp_late_is_wanted(thread, batch, ticks))
		return 0;
	thread->handing = late->frame = 0;
	late->call_ticks = ticks - late->entered_ticks;
	nfp_late_leave_newest(late, batch);
	return 1;
}

// Whether the numbers, at least one, are the next ones of the newest batch, in its order, which is not tagged: as far as the
// first, the middle and the last one say.
static inline int nfp_owner_is_next(struct nfp_late *late, const uint32_t *numbers, uint32_t count)
{
	const uint32_t *next = late->numbers + late->left;
	if (!late->is_untagged || late->order == NFP_ORDER_NONE ||
	    count > nfp_late_batch_at(late, late->batches - 1)->count - late->left)
		return 0;
	return numbers[0] == next[0] && numbers[count / 2] == next[count / 2] &&
	       numbers[count - 1] == next[count - 1];
}

// Whether packets of the batch will be old enough when the call that was entered ends, if it takes a quarter longer than the
// one before it. Then what the NF changes when it frees them is kept.
static inline int nfp_late_may_become(const struct nfp_thread *thread, const struct nfp_late *late,
                                      const struct nfp_late_batch *batch)
{
	uint64_t end_ticks = late->entered_ticks + late->call_ticks + late->call_ticks / 4;
	return !batch || nfp_late_is_wanted(thread, batch, end_ticks);
}

// The same as nfp_late_enter for most calls with numbered buffers: they hand on what was received last and is young. Returns
// 0 where it is not such a call.
static inline int nfp_late_enter_next(struct nfp_thread *thread, const struct nfp_program *program,
                                      const uint32_t *numbers, uint32_t count, uint32_t frame, uint64_t ticks)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (!late->until_check || late->keeps_heads || !program->pooled || !nfp_late_sends_away(program) ||
	    nfp_late_is_inside(thread, frame) || !nfp_owner_is_next(late, numbers, count))
		return 0;
	late->entered_ticks = ticks ? ticks : nfp_ticks();
	if (nfp_late_may_become(thread, late, nfp_late_batch_at(late, late->batches - 1)))
		return 0;
	late->until_check--;
	late->worked = 1;
	late->seen_packets = late->checks = late->headed = late->chained = 0;
	late->number_shift = (uint8_t)program->number_shift;
	late->count = count;
	late->array = (uint64_t)(uintptr_t)numbers;
	late->whole = late->batches;
	thread->handing = late->frame = frame;
	return 1;
}

// fast_path.c: the same for a call that was let pass at its entry, where it hands on the newest batch as it was received. What
// nfp_late_catch_up would note for such a call is for what follows, and nothing does.
static inline int nfp_late_pass_newest(struct nfp_thread *thread, struct nfp_burst burst, uint64_t ticks)
{
	struct nfp_late *late = nfp_late_of(thread);
	const struct nfp_late_batch *batch = nfp_late_batch_at(late, late->batches - 1);
	if (!late->batches || late->order != NFP_ORDER_KEPT || !late->until_check || burst.single ||
	    burst.count != batch->count || nfp_late_is_wanted(thread, batch, ticks) ||
	    !nfp_late_is_kept(late, batch, (const uint64_t *)(uintptr_t)burst.pointers))
		return 0;
	late->until_check--;
	nfp_late_leave(thread);
	return 1;
}

// The numbers of a frame, where what is read of it lies in one page that is known to be readable; NULL: elsewhere. Most
// frames are so, and need one look instead of three (nfp_numbers_of).
static inline const uint32_t *nfp_late_numbers_in_page(const struct nfp_program *program, uint64_t frame,
                                                       uint32_t *count)
{
	const uint8_t *bytes = (const uint8_t *)(uintptr_t)frame;
	uint64_t page = frame >> NFP_PAGE_SHIFT, at = frame & ((1u << NFP_PAGE_SHIFT) - 1);
	uint16_t packets, offset;
	// Neither offset is larger than both together.
	if (!page || (program->count_offset | program->array_offset) > NFP_LATE_HEADER - sizeof(uint16_t) ||
	    at > (1u << NFP_PAGE_SHIFT) - NFP_LATE_HEADER ||
	    __atomic_load_n(&nfp_known_pages[page % NFP_KNOWN_PAGES], __ATOMIC_RELAXED) != page)
		return NULL;
	__builtin_memcpy(&packets, bytes + program->count_offset, sizeof(packets));
	__builtin_memcpy(&offset, bytes + program->array_offset, sizeof(offset));
	*count = packets;
	if (at + offset + packets * sizeof(uint32_t) > 1u << NFP_PAGE_SHIFT)
		return NULL;
	return (const uint32_t *)(uintptr_t)(frame + offset);
}

// owner.c. How many entries the table needs.
uint64_t nfp_owners_needed(uint64_t buffers_bytes);
// The buffers were received in this batch of the thread.
void nfp_owner_give(struct nfp_thread *thread, uint64_t batch, struct nfp_burst burst);
// The newest batch of the thread is tagged, if that was deferred: buffers are about to be looked up, or `numbers` is
// overwritten.
void nfp_owner_tag_newest(struct nfp_thread *thread);
// These buffers will contain other packets, which were not received.
void nfp_owner_forget(struct nfp_thread *thread, struct nfp_burst burst);
// In which batch, and at which position, a packet of the call was received; NULL: in none that is known.
struct nfp_late_batch *nfp_owner_find(const struct nfp_late *late, uint32_t packet, uint32_t *position);
// The batch of all packets of the call; NULL: there are several, or it is not known.
struct nfp_late_batch *nfp_owner_of_all(const struct nfp_late *late);
// A packet of the call that nobody has received goes on in another buffer: where that was received it is its packet.
void nfp_owner_inherit(const struct nfp_late *late, uint32_t packet, uint32_t next);
// The call's packets have left.
void nfp_owner_leave(struct nfp_late *late);
// How many batches of the thread have begun after that of a buffer; UINT32_MAX: it is not known, or another thread's.
uint32_t nfp_owner_age(const struct nfp_thread *thread, uint32_t number, uint32_t shift);

// handoff.c. Numbered packets are about to be put into queues of other threads.
void nfp_handoff_pin(struct nfp_thread *thread, struct nfp_burst burst);
// They were taken out by a call that was entered at `start_ticks`. Sets the thread's batch_earliest where that is known, and
// returns the marks of the POLL_QUEUE record.
uint32_t nfp_handoff_take(struct nfp_thread *thread, struct nfp_burst burst, uint64_t start_ticks,
                          uint32_t marks);
// The batch of another thread that a packet of the call came with; NULL: it is not known, or no longer.
struct nfp_late_batch *nfp_handoff_find(const struct nfp_late *late, uint32_t packet, uint32_t *position,
                                        struct nfp_handed_over *out);
// Fills in by which call of this thread a packet was taken over.
void nfp_handoff_complete(struct nfp_late *late, uint32_t packet, struct nfp_origin *origin);
// What the thread has spent on identifying packets since then; UINT64_MAX: it has taken none over.
uint64_t nfp_handoff_spent(const struct nfp_late *late, uint64_t ticks);
// The call's packets have left.
void nfp_handoff_leave(const struct nfp_late *late);

// share.c, of numbered buffers. A receive call has ended, and its packets are looked for now. Most batches have left whole
// before the next one comes, and no buffer was tagged with them: the next one takes the same number. So where every batch is
// of one packet they use one cache line, not those of all that are kept. One that packets were identified since stays: how
// long that took is told by it (spent_since, late.c).
static inline void nfp_share_begin(struct nfp_thread *thread, const struct nfp_program *program)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (late->is_untagged) {
		const struct nfp_late_batch *batch = nfp_late_batch_at(late, late->batches - 1);
		if (batch->gone && batch->spent_ticks == late->spent_ticks) {
			late->is_untagged = 0;
			late->batches--;
		} else {
			nfp_owner_tag_newest(thread); // what is received now may be written over its numbers
		}
	}
	if (late->worked || !late->batches) {
		late->turn_first = late->batches;
		thread->shares = 0;
	}
	if (program->role == NFP_ROLE_RECEIVE)
		late->input = program;
}

// Whether nfp_share_receive has something to do: packets are not asked for, or a turn has several batches.
static inline int nfp_share_is_asked(const struct nfp_thread *thread)
{
	const struct nfp_late *late = nfp_late_of(thread);
	return !(thread->gate & NFP_GATE_LATE) || late->batches - late->turn_first > 1;
}

// A receive call returns packets; `burst` has their numbers where they are known, and
// `structure` is its argument.
void nfp_share_receive(struct nfp_thread *thread, const struct nfp_program *program, uint64_t structure,
                       struct nfp_burst burst, uint32_t count, uint64_t start_ticks);
// A call with the frame `structure` ends: whose packets it holds is written.
void nfp_share_call(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                    uint64_t structure, uint32_t low_sp);

// late.c, for snapshot.c: position of the latest one below `before` where the pointer was received, NFP_LATE_NOWHERE: none.
#define NFP_LATE_NOWHERE UINT64_MAX
uint64_t nfp_late_find_below(const struct nfp_late *late, uint64_t pointer, uint64_t before, uint64_t oldest);
// numbered.c. The numbers of the buffers that a receive call which has returned `count` packets has put into frames, and how
// many they are; NULL: they are not found.
const uint32_t *nfp_pending_numbers(struct nfp_thread *thread, const struct nfp_program *program,
                                    uint64_t argument, uint32_t *count);
// The same for most calls: one frame is pending, and holds what the first receive call of a turn has returned. Returns 0
// where it is not so, and nothing was done then.
int nfp_pending_take_only(struct nfp_late *late, const struct nfp_program *program, uint64_t argument,
                          uint32_t count);
// The same of packets that come back: `count` is what the call has returned, which may be more than there are.
const uint32_t *nfp_pending_returned(struct nfp_thread *thread, const struct nfp_program *program,
                                     uint64_t argument, uint32_t *count);
// Notes how full frames are after a receive call whose packets are not needed.
void nfp_pending_note(struct nfp_thread *thread, const struct nfp_program *program, uint64_t argument);
// The numbers in frame `i` of those that were pending after the last receive call, which are as many as it held then; 0: it
// is no longer pending.
const uint32_t *nfp_pending_known(const struct nfp_thread *thread, const struct nfp_program *program,
                                  uint64_t argument, uint32_t i, uint32_t *count);
// The same for a call that has taken packets over from `queue`: how many they are only the frames say.
const uint32_t *nfp_pending_taken(struct nfp_thread *thread, const struct nfp_program *program,
                                  uint64_t argument, uint64_t queue, uint32_t *count);
// numbered.c. The numbers of the buffers of a structure; NULL: they cannot be read.
const uint32_t *nfp_numbers_of(const struct nfp_program *program, uint64_t structure, uint32_t count);
// The buffers with these numbers, up to the first that names none. Returns how many they are.
uint32_t nfp_name_buffers(const struct nfp_program *program, const uint32_t *numbers, uint32_t count,
                          uint64_t *buffers);
// The buffer with this number; 0: there is none.
uint64_t nfp_numbered_at(const struct nfp_program *program, uint64_t number);
// The number of the buffer after this one, where there is one.
uint32_t nfp_numbered_next(const struct nfp_program *program, uint64_t buffer);
// A packet that has left: its buffer's head may have been overwritten when it was freed.
void nfp_numbered_freed_view(const struct nfp_program *program, uint64_t buffer, struct nfp_view *view);

// snapshot.c, for late.c. Reads again what was copied. The first difference makes the thread copy from then on. Where the
// array, too, is as it was, the thread's next calls are not looked at when they begin, up to the next check.
void nfp_late_check(struct nfp_thread *thread, const struct nfp_program *program, struct nfp_late *late);
// Packets of the call are needed, which are those of a whole batch as far as one could see. Puts their pointers into `held`
// where they stand in the array only. They may turn out to be others: from now on arrays are recognised in another way, and
// 0 is returned where the pointers of the call are not known.
int nfp_late_take(struct nfp_late *late);
// A packet of the call, as it was at the entry. Returns 0 where its bytes cannot be told any more; from now on the thread
// copies them.
int nfp_late_view(struct nfp_thread *thread, const struct nfp_program *program, uint32_t index,
                  struct nfp_view *view);
#endif
