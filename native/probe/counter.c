// SPDX-License-Identifier: Apache-2.0
// Reads the calling thread's performance counters, before the record that a probe is about to write.
//
// A template writes no more than `limit` allows and else takes the slow path. While a thread is counted its limit allows
// nothing: every record takes the slow path, which here reads the counters, writes them in slots of their own and
// allows one record. So templates are the same bytes with counters and without, and counting begins and ends while
// threads run. At an entry the counters are read before the time stamp, at an exit after it: what reading them costs is
// in no duration.
//
// A receive function's template has another way for threads that are counted (NFP_GATE_COUNTED): it has the readings of
// each entry kept below its frame, and they are written with the records of a poll that returned something (capture.c).
//
// Protocol (include/uapi/linux/perf_event.h): lock, index, the counter, lock. The monitor compares the locks of entry and
// exit: equal ones mean that the thread was not switched out, moved or given other counters in between.
#include "counter.h"
#include "frame.h"
#include "ring_space.h"

#define PAIRS(count) (((count) + 1) / 2)
#define LOCKS ((1u << NFP_COUNTERS_CHANGE_SHIFT) - 1)

// Reads one counter. Adds its lock to the check, or says there that it was not counting.
static inline __attribute__((always_inline)) uint32_t
read_counter(const volatile struct nfp_counter_page *page, uint32_t *check, uint32_t *off)
{
	uint32_t lock = page->lock, index = page->index;
	if (__builtin_expect(index == 0, 0))
		return *off = NFP_COUNTERS_OFF, 0;
	uint32_t low = nfp_counter_low(index - 1);
	if (__builtin_expect(page->lock != lock || lock & 1, 0))
		*off = NFP_COUNTERS_OFF;
	*check += lock;
	return low;
}

// Returns the low halves of a pair of counters, which stand still in the probes of empty polls: nothing else says how
// many of these a call contains.
static inline __attribute__((always_inline)) uint64_t read_pair(const struct nfp_thread *thread,
                                                                uint32_t pair, uint32_t count,
                                                                uint32_t *all_checks)
{
	const struct nfp_counter_pages *counters = thread->counter_pages;
	uint32_t polls = (uint32_t)thread->shared->empty_polls;
	// Before the pages: what says that it is of the newest counters is of none before. Partner: nfp_counters_set.
	uint32_t change = __atomic_load_n(&counters->change, __ATOMIC_ACQUIRE);
	uint32_t check = 0, off = 0, second = 0;
	uint32_t first = read_counter(counters->pages[2 * pair], &check, &off);
	first -= polls * counters->polls[2 * pair];
	if (2 * pair + 1 < count) {
		second = read_counter(counters->pages[2 * pair + 1], &check, &off);
		second -= polls * counters->polls[2 * pair + 1];
	}
	*all_checks = (check & LOCKS & ~(uint32_t)NFP_COUNTERS_OFF) | off | change;
	return first | (uint64_t)second << 32;
}

static inline __attribute__((always_inline)) struct nfp_record *
put_pair(const struct nfp_thread *thread, struct nfp_record *slot, uint32_t pair, uint32_t count, uint32_t sp)
{
	uint32_t check;
	uint64_t lows = read_pair(thread, pair, count, &check);
	return nfp_put(slot, lows, check | (NFP_COUNTERS + pair) << NFP_KIND_SHIFT, sp);
}

// The number of counters is known to the compiler.
static inline __attribute__((always_inline)) void write_all(struct nfp_thread *thread, uint32_t count,
                                                            uint32_t sp)
{
	struct nfp_record *slot = nfp_take(thread, PAIRS(count));
	for (uint32_t pair = 0; pair < PAIRS(count); pair++)
		slot = put_pair(thread, slot, pair, count, sp);
}

static inline __attribute__((always_inline)) void keep_all(const struct nfp_thread *thread, uint32_t count,
                                                           struct nfp_kept_readings *readings)
{
	for (uint32_t pair = 0; pair < PAIRS(count); pair++)
		readings->lows[pair] = read_pair(thread, pair, count, &readings->check[pair]);
	readings->pairs = PAIRS(count);
}

// One for each number of counters, up to the number of slots.
#define OF(count) ((count) < NFP_COUNTER_SLOTS ? (count) : NFP_COUNTER_SLOTS)
#define WRITER(count)                                                                                        \
	static void write_##count(struct nfp_thread *thread, uint32_t sp)                                    \
	{                                                                                                    \
		write_all(thread, OF(count), sp);                                                            \
	}                                                                                                    \
	static void keep_##count(struct nfp_thread *thread, struct nfp_kept_readings *readings)              \
	{                                                                                                    \
		keep_all(thread, OF(count), readings);                                                       \
	}
WRITER(1)
WRITER(2)
WRITER(3)
WRITER(4)
WRITER(5)
WRITER(6)
WRITER(7)
WRITER(8)

#define CHOICE(count) {write_##count, keep_##count}

void nfp_counters_choose(struct nfp_counter_pages *counters, uint32_t count)
{
	static const struct {
		void (*write)(struct nfp_thread *thread, uint32_t sp);
		void (*keep)(struct nfp_thread *thread, struct nfp_kept_readings *readings);
	} made[] = {CHOICE(1), CHOICE(2), CHOICE(3), CHOICE(4), CHOICE(5), CHOICE(6), CHOICE(7), CHOICE(8)};
	_Static_assert(NFP_COUNTER_SLOTS <= sizeof(made) / sizeof(made[0]),
	               "each number of counters is here");
	counters->write = made[count - 1].write;
	counters->keep = made[count - 1].keep;
}

void nfp_counters_keep(struct nfp_thread *thread, struct nfp_kept_readings *readings)
{
	readings->epoch = nfp_library.header->epoch;
	readings->pairs = 0;
	if (__atomic_load_n(&thread->counted, __ATOMIC_ACQUIRE))
		((struct nfp_counter_pages *)thread->counter_pages)->keep(thread, readings);
}

void nfp_counters_write(struct nfp_thread *thread, uint32_t sp)
{
	uint32_t count = __atomic_load_n(&thread->counted, __ATOMIC_ACQUIRE);
	// Room for the records that follow, too.
	uint64_t bytes = (PAIRS(count) + 2) * NFP_RECORD_BYTES;
	if (count && (thread->cursor + bytes <= thread->room || nfp_ring_space_find(thread, bytes)))
		((struct nfp_counter_pages *)thread->counter_pages)->write(thread, sp);
}

void nfp_counted_entry(struct nfp_thread *thread, struct nfp_counted_frame *frame)
{
	nfp_counters_keep(thread, &frame->readings);
}

// How far the ring may be written, looked at before each record: a probe that looked only where it has to would count
// more at that one than at the others, and what probes count could not be taken off exactly. Returns whether what is
// lost has been marked and the readings of `count` counters fit with their record.
static inline __attribute__((always_inline)) int has_room(struct nfp_thread *thread, uint32_t count)
{
	// Partner: nfp_drain_publish, as in nfp_ring_space_find.
	uint64_t tail = __atomic_load_n(&thread->shared->tail, __ATOMIC_ACQUIRE);
	uint64_t lost = thread->lost_pending[0] | thread->lost_pending[1] | thread->lost_pending[2];
	if (lost)
		return 0;
	nfp_ring_space_set(thread, tail);
	return thread->cursor + (PAIRS(count) + 1) * NFP_RECORD_BYTES <= thread->room;
}

// As nfp_thread_slow, for a thread whose counters are read. A signal handler that comes before the record has taken its
// slot makes the template come here once more; readings without their record are recognised by sp and left out.
__attribute__((used)) struct nfp_thread *nfp_counted_slow(struct nfp_thread *thread, uint32_t loss,
                                                          uint32_t sp)
{
	uint32_t count = __atomic_load_n(&thread->counted, __ATOMIC_ACQUIRE);
	if (__builtin_expect(count == 0 || !has_room(thread, count), 0)) {
		thread = nfp_thread_slow(thread, loss);
		if (!thread || !__atomic_load_n(&thread->counted, __ATOMIC_ACQUIRE))
			return thread;
		if (!nfp_ring_space_find(thread, 4 * NFP_RECORD_BYTES)) {
			// Only the slots of the readings do not fit: the record goes without.
			nfp_limit_set_one(thread);
			return thread;
		}
	}
	((struct nfp_counter_pages *)thread->counter_pages)->write(thread, sp);
	nfp_limit_set_one(thread);
	return thread;
}
