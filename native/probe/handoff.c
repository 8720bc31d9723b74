// SPDX-License-Identifier: Apache-2.0
// Packets that one thread hands to another by a queue, where they are named by numbers and not all are identified: since
// when they are here, and whose batch they came with, however much that thread has received since.
//
//   call that puts packets into queues, entry   the batch of each is noted ("pin"), by the thread that has received it
//   call that takes them out, exit              their numbers are kept, and since when the oldest of them can have waited
//   transmit or drop call, exit                 late.c asks for the batch and for the call that took the packet over
//
//   offset of the buffer / 1 KiB -> | thread: 10 bits | number of the pin: 22 bits |      0: there is none
//
// A pin is noted before the packets are in the queue, whose own order makes it visible with them: at the call's exit another
// thread may have sent them already. What another thread has noted is copied and then looked at again: it may be noted
// over meanwhile. Runs on the target's threads; called by capture.c and late.c.
#include "late.h"

enum {
	ENTRY_SHIFT = 10, // as of the table of owners (owner.c)
	PIN_BITS = 22,
	PIN_MASK = (1 << PIN_BITS) - 1,
};
_Static_assert(NFP_THREAD_COUNT <= 1 << (32 - PIN_BITS), "a thread has 10 bits");
_Static_assert((NFP_LATE_PINS & (NFP_LATE_PINS - 1)) == 0, "the low bits of a number say where it is");
_Static_assert(NFP_LATE_NUMBERS <= NFP_LATE_TAKEN, "a call's numbers have room");

// Where the buffer's entry is; NULL: there is none. Partner: make_owners (helper.c).
static uint32_t *entry_of(uint32_t number, uint32_t shift)
{
	uint64_t index = (uint64_t)number << shift >> ENTRY_SHIFT;
	return index < __atomic_load_n(&nfp_library.pins_count, __ATOMIC_ACQUIRE) ? &nfp_library.pins[index]
	                                                                          : NULL;
}

static int read_pin(uint32_t tag, struct nfp_late_pin *out)
{
	struct nfp_late *late = &nfp_library.late[tag >> PIN_BITS];
	const struct nfp_late_pin *pin = &late->pin[tag % NFP_LATE_PINS];
	uint64_t number = __atomic_load_n(&pin->number, __ATOMIC_ACQUIRE);
	if (!tag || !number || (number & PIN_MASK) != (tag & PIN_MASK))
		return 0;
	*out = *pin;
	__atomic_thread_fence(__ATOMIC_ACQUIRE); // partner: make_pin
	return __atomic_load_n(&pin->number, __ATOMIC_RELAXED) == number;
}

// The call that took the number over, and its place there; NULL: it is not kept any more. Packets mostly leave as they came.
static const struct nfp_late_take *find_take(struct nfp_late *late, uint32_t number, uint32_t *index)
{
	uint64_t oldest = late->taken > NFP_LATE_TAKEN ? late->taken - NFP_LATE_TAKEN : 0,
	         at = late->taken_next;
	if (at < oldest || at >= late->taken || late->taken_numbers[at % NFP_LATE_TAKEN] != number) {
		for (at = late->taken;
		     at > oldest && late->taken_numbers[(at - 1) % NFP_LATE_TAKEN] != number;)
			at--;
		if (at-- == oldest)
			return NULL;
	}
	late->taken_next = at + 1;
	for (uint64_t kept = late->takes; kept > 0 && late->takes - kept < NFP_LATE_TAKES; kept--) {
		const struct nfp_late_take *take = &late->take[(kept - 1) % NFP_LATE_TAKES];
		if (take->first > at)
			continue;
		*index = (uint32_t)(at - take->first);
		return take;
	}
	return NULL;
}

// ---- putting packets into queues ------------------------------------------------------------------------------

static uint32_t make_pin(struct nfp_thread *thread, struct nfp_late_pin pin)
{
	struct nfp_late *late = nfp_late_of(thread);
	uint64_t number = ++late->pins;
	struct nfp_late_pin *out = &late->pin[number % NFP_LATE_PINS];
	pin.number = 0;
	pin.handed_ticks = nfp_ticks();
	__atomic_store_n(&out->number, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE); // partner: read_pin
	*out = pin;
	__atomic_store_n(&out->number, number, __ATOMIC_RELEASE);
	return thread->index << PIN_BITS | ((uint32_t)number & PIN_MASK);
}

// Of a batch of this thread. What it has spent on identifying others since they came is not their age.
static uint32_t pin_batch(struct nfp_thread *thread, const struct nfp_late_batch *batch)
{
	const struct nfp_late *late = nfp_late_of(thread);
	return make_pin(thread,
	                (struct nfp_late_pin){.start_ticks = batch->start_ticks,
	                                      .age_start_ticks = batch->age_start_ticks + late->spent_ticks -
	                                                         batch->spent_ticks,
	                                      .count = batch->count,
	                                      .drawn = batch->drawn,
	                                      .thread = thread->index});
}

// The packets of one pin that one call took over, which are handed over again.
struct going_on {
	uint32_t from, to; // pins
	const struct nfp_late_take *take;
};

// A packet that this thread has taken over: its pin with one thread more. Returns the one that it has where more is not known.
static uint32_t pin_again(struct nfp_thread *thread, uint32_t number, uint32_t tag, struct going_on *last)
{
	struct nfp_late_pin pin;
	uint32_t index;
	const struct nfp_late_take *take = find_take(nfp_late_of(thread), number, &index);
	if (take && tag == last->from && take == last->take)
		return last->to;
	if (!take || !read_pin(tag, &pin) || pin.via_count >= NFP_VIAS_MAX)
		return tag;
	pin.via[pin.via_count++] = (struct nfp_via){take->start_ticks, thread->index};
	*last = (struct going_on){tag, make_pin(thread, pin), take};
	return last->to;
}

static int is_of(uint32_t tag, const struct nfp_late_batch *batch)
{
	struct nfp_late_pin pin;
	return read_pin(tag, &pin) && pin.start_ticks == batch->start_ticks;
}

// Frames that hold packets of one batch are told by three of them, as in owner.c; of others each is looked up.
static void pin_some(struct nfp_thread *thread, uint32_t shift)
{
	struct nfp_late *late = nfp_late_of(thread);
	const struct nfp_late_batch *whole = nfp_owner_of_all(late), *last = NULL;
	struct going_on again = {0};
	uint32_t tag = 0, position;
	for (uint32_t i = 0; i < late->count; i++) {
		const struct nfp_late_batch *batch = whole ? whole : nfp_owner_find(late, i, &position);
		uint32_t *entry = entry_of(late->handed[i], shift), old = entry && late->takes ? *entry : 0;
		int is_received = batch && nfp_late_is_own(late, batch);
		if (is_received && batch != last)
			tag = pin_batch(thread, batch);
		last = is_received ? batch : last;
		if (entry && old && (!is_received || is_of(old, batch)))
			*entry = pin_again(thread, late->handed[i], old, &again);
		else if (entry)
			*entry = is_received ? tag : 0;
	}
}

void nfp_handoff_pin(struct nfp_thread *thread, struct nfp_burst burst)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (thread->handing)
		return;
	for (uint32_t first = 0; first < burst.count; first += late->count) {
		late->count = nfp_smaller(burst.count - first, NFP_LATE_POINTERS);
		late->number_shift = (uint8_t)burst.number_shift;
		nfp_late_copy_numbers(late->handed, burst.numbers + first, late->count);
		pin_some(thread, burst.number_shift);
	}
}

// ---- taking them out ------------------------------------------------------------------------------------------

// Since when the oldest of the packets can have waited, as far as three of them tell; `ticks` where none is known.
static uint64_t find_earliest(struct nfp_burst burst, uint64_t ticks)
{
	const uint32_t at[] = {0, burst.count / 2, burst.count - 1};
	uint64_t earliest = ticks;
	for (uint32_t i = 0; i < sizeof(at) / sizeof(*at); i++) {
		struct nfp_late_pin pin;
		const uint32_t *entry = entry_of(burst.numbers[at[i]], burst.number_shift);
		if (entry && read_pin(*entry, &pin) && pin.age_start_ticks < earliest)
			earliest = pin.age_start_ticks;
	}
	return earliest;
}

uint32_t nfp_handoff_take(struct nfp_thread *thread, struct nfp_burst burst, uint64_t start_ticks,
                          uint32_t marks)
{
	struct nfp_late *late = nfp_late_of(thread);
	struct nfp_late_take *take = &late->take[late->takes++ % NFP_LATE_TAKES];
	*take = (struct nfp_late_take){start_ticks, late->spent_ticks, late->taken, burst.count};
	uint32_t at = (uint32_t)(late->taken % NFP_LATE_TAKEN);
	uint32_t first = nfp_smaller(burst.count, NFP_LATE_TAKEN - at);
	nfp_late_copy_numbers(late->taken_numbers + at, burst.numbers, first);
	nfp_late_copy_numbers(late->taken_numbers, burst.numbers + first, burst.count - first);
	late->taken += burst.count;
	uint64_t earliest = find_earliest(burst, start_ticks);
	if (earliest >= start_ticks)
		return marks;
	thread->batch_earliest = earliest;
	return (marks & ~NFP_QUEUE_SATURATED) | NFP_QUEUE_RECEIVED;
}

// ---- whose they are -------------------------------------------------------------------------------------------

// A frame held packets of other batches than that of its first, middle and last one: the buffer's owner knows better, where
// that was received before it was handed over.
static void correct(const struct nfp_late_batch *owner, struct nfp_late_pin *pin)
{
	struct nfp_late_batch batch = *(const volatile struct nfp_late_batch *)owner;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (batch.start_ticks == pin->start_ticks || batch.start_ticks > pin->handed_ticks ||
	    batch.start_ticks != *(const volatile uint64_t *)&owner->start_ticks)
		return;
	pin->start_ticks = batch.start_ticks;
	pin->age_start_ticks = batch.age_start_ticks;
	pin->count = batch.count;
	pin->drawn = batch.drawn;
}

// A call that frees its buffers and is then preempted ends when others have received into them, and handed these over.
static int is_reused(const struct nfp_late *late, const struct nfp_late_pin *pin)
{
	return pin->handed_ticks > late->entered_ticks;
}

struct nfp_late_batch *nfp_handoff_find(const struct nfp_late *late, uint32_t packet, uint32_t *position,
                                        struct nfp_handed_over *out)
{
	struct nfp_late_pin pin;
	if (!late->takes)
		return NULL;
	const uint32_t *entry = entry_of(late->handed[packet], late->number_shift);
	uint32_t tag = entry ? *entry : 0;
	if (!tag || !read_pin(tag, &pin))
		return NULL;
	out->reused = (uint32_t)is_reused(late, &pin);
	if (out->reused)
		return NULL;
	const struct nfp_late_batch *owner = nfp_owner_find(late, packet, position);
	if (owner)
		correct(owner, &pin);
	if (*position >= pin.count)
		return NULL;
	out->thread = pin.thread;
	out->batch.start_ticks = pin.start_ticks;
	out->batch.age_start_ticks = pin.age_start_ticks;
	out->batch.drawn = pin.drawn;
	return &out->batch;
}

void nfp_handoff_complete(struct nfp_late *late, uint32_t packet, struct nfp_origin *origin)
{
	struct nfp_late_pin pin;
	uint32_t number = late->handed[packet];
	const uint32_t *entry = late->takes ? entry_of(number, late->number_shift) : NULL;
	if (!entry || !read_pin(*entry, &pin) || pin.thread != origin->thread)
		return;
	if (origin->start_ticks > pin.handed_ticks) // of the packet before, whose last call has not ended
		return;
	const struct nfp_late_take *take = find_take(late, number, &origin->taken_index);
	if (!take)
		return;
	origin->taken_ticks = take->start_ticks;
	origin->via_count = nfp_smaller(pin.via_count, NFP_VIAS_MAX);
	for (uint32_t i = 0; i < origin->via_count; i++)
		origin->via[i] = pin.via[i];
}

uint64_t nfp_handoff_spent(const struct nfp_late *late, uint64_t ticks)
{
	uint64_t spent = UINT64_MAX;
	for (uint64_t kept = late->takes; kept > 0 && late->takes - kept < NFP_LATE_TAKES; kept--) {
		const struct nfp_late_take *take = &late->take[(kept - 1) % NFP_LATE_TAKES];
		spent = late->spent_ticks - take->spent_ticks;
		if (take->start_ticks <= ticks)
			break;
	}
	return spent;
}

void nfp_handoff_leave(const struct nfp_late *late)
{
	uint32_t left = 0; // the pin of those before
	for (uint32_t i = 0; late->takes && i < late->count; i++) {
		struct nfp_late_pin pin;
		uint32_t *entry = entry_of(late->handed[i], late->number_shift), tag = entry ? *entry : 0;
		if (!tag || (tag != left && read_pin(tag, &pin) && is_reused(late, &pin)))
			continue;
		*entry = 0;
		left = tag;
	}
}
