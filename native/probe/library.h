// SPDX-License-Identifier: Apache-2.0
// What the files of the probe library share: the mapped session and the calling thread's block.
// Everything here runs inside a target: no exit, abort, assert, malloc, stdio or lock, and on the target's
// own threads (thread.c, capture.c) no libc call at all.
#ifndef NFPROBE_LIBRARY_H
#define NFPROBE_LIBRARY_H
#include "abi/ring.h"
#include "abi/session.h"
#include "arch/arch.h"

#define NFP_FORMER_COUNT 8

struct nfp_library {
	struct nfp_session_header *header; // the fixed part of the shared memory, 40 MiB, mapped read-write
	struct nfp_thread_shared *table; // in it
	struct nfp_program *programs; // in it
	struct nfp_thread *threads; // NFP_THREAD_COUNT blocks; reads as zero in a forked child
	struct nfp_late *late; // NFP_THREAD_COUNT, see late.h
	uint32_t *owners; // of the buffers that are named by numbers (owner.c)
	uint64_t owners_count;
	uint32_t *pins; // of those that were handed over from thread to thread (handoff.c)
	uint64_t pins_count;
	uint64_t
	    rings[NFP_THREAD_COUNT]; // where the first lap of a mapped ring is written, by thread table index
	// Blocks of sessions with another ring size. A thread that still points to one takes the slow path, which
	// gives it a block of this session.
	struct nfp_thread *former[NFP_FORMER_COUNT];
	int session_fd;
	uint32_t gate; // of all threads that may write
	long pid; // that made the session: a forked child has another
	int64_t word_offset; // of a thread's word from its thread base, the same for every thread
};
_Static_assert(offsetof(struct nfp_library, programs) == NFP_LIBRARY_PROGRAMS, "thunk.S");
_Static_assert(offsetof(struct nfp_program, plain) == NFP_PROGRAM_PLAIN, "thunk.S");
_Static_assert(sizeof(struct nfp_program) == 1 << NFP_PROGRAM_SHIFT, "thunk.S");

extern struct nfp_library nfp_library;
// Of threads that have written nothing yet. Its address is exported: otel_nfprobe/target/musl.py stores it.
extern struct nfp_thread nfp_null_thread __attribute__((visibility("protected")));
// For threads of a forked child. Its gate stays closed until the child has its own session.
extern struct nfp_thread nfp_silent_thread;
extern struct nfp_thread nfp_claiming_thread; // of a thread while it gets a ring: for its signal handlers

// The thread word: eight bytes of thread-local storage that hold the address of the thread's block. Templates
// address it at a constant distance from the thread base, which only static storage has; how a library that is loaded
// later comes by some depends on the C library (word_glibc.c, word_musl.c). Returns the offset, or 0: the calling
// thread is older than the library and has no word yet.
int64_t nfp_find_word(void);

static inline struct nfp_thread **nfp_thread_word(void)
{
	return (struct nfp_thread **)(nfp_thread_base() + (uintptr_t)nfp_library.word_offset);
}

// Makes room for a record of loss class `loss` in the ring of `thread`, giving the calling thread a ring if
// it has none. Returns the thread's block, or NULL: the record is lost and counted.
struct nfp_thread *nfp_thread_slow(struct nfp_thread *thread, uint32_t loss);
// Gives the calling thread a block of this session, with its ring's room known. NULL: a forked child, or all
// rings are in use; the loss is counted.
struct nfp_thread *nfp_thread_enter(struct nfp_thread *thread, uint32_t loss);

// The calling thread's block of this session. Only a block without a ring, or of an earlier session, has the
// limit 0.
static inline struct nfp_thread *nfp_thread_ready(struct nfp_thread *thread, uint32_t loss)
{
	return __builtin_expect(thread->limit != 0, 1) ? thread : nfp_thread_enter(thread, loss);
}

// Whether this is a forked child without its own session.
static inline int nfp_is_forked(void)
{
	return !nfp_library.header || !nfp_library.threads[0].kept;
}

// The gate that threads must have.
static inline uint32_t nfp_wanted_gate(void)
{
	return nfp_is_forked() ? 0 : __atomic_load_n(&nfp_library.gate, __ATOMIC_SEQ_CST);
}

// The gate that one of them must have. Partner: nfp_counters_set, which changes `counted` and then the gate.
static inline uint32_t nfp_gate_of(const struct nfp_thread *thread)
{
	uint32_t gate = nfp_wanted_gate();
	int counted = __atomic_load_n(&thread->counted, __ATOMIC_SEQ_CST) != 0;
	return counted && gate & NFP_GATE_OUTER ? gate | NFP_GATE_COUNTED : gate;
}

// Gives the threads without a ring the gate that they must have.
void nfp_follow_gate(void);

// rings.c. Maps ring `index` if it is not. Returns 0 or -errno.
long nfp_ring_map(uint32_t index);

// thunk.S: what the templates call; they save what C does not.
extern const char nfp_slow_thunk[], nfp_counted_thunk[], nfp_receive_exit_thunk[], nfp_packets_entry_thunk[],
    nfp_packets_exit_thunk[], nfp_counted_entry_thunk[], nfp_counted_exit_thunk[], nfp_trusted_entry_thunk[],
    nfp_shares_thunk[], nfp_ending_receive_exit_thunk[], nfp_ending_counted_exit_thunk[];

// Takes `count` slots where there is room, and asks for as many cache lines ahead (ring.h).
static inline struct nfp_record *nfp_take(struct nfp_thread *thread, uint32_t count)
{
	uint64_t bytes = (uint64_t)count * NFP_RECORD_BYTES;
	uint64_t address = nfp_fetch_add_local(&thread->cursor, bytes);
	for (uint64_t at = 0; at < bytes; at += 64)
		nfp_ring_ahead(address + at);
	return (struct nfp_record *)(uintptr_t)address;
}

// The ring looks too full for `count` slots: reads how far the monitor has come. Returns whether they fit;
// if not, they are lost and counted.
int nfp_make_room(struct nfp_thread *thread, uint32_t count, uint32_t loss);

// ring_space.c. How far the ring may be written is worked out anew, for `bytes` that belong together and are written next. Returns
// whether they fit.
int nfp_ring_space_find(struct nfp_thread *thread, uint64_t bytes);
// The slot at `cursor` may be written, then the limit is checked again.
void nfp_limit_set_one(struct nfp_thread *thread);

// What changing code without a stop needs done in the target. `what` is enum nfp_sync. Returns 0 or -errno.
long nfp_sync(uint64_t what);

// Measures the probe on the function at `probed` beside the same function without one, at `bare`. The answer is in
// the session's header. Returns 0 or -errno.
long nfp_calibrate(uint64_t bare, uint64_t probed);
// The same for what calls of a function count, in so many rounds. Returns 0 or -errno; -EAGAIN: the counters were never
// undisturbed.
long nfp_calibrate_counters(uint64_t function, uint64_t wanted);

// counter.c. Writes the readings of a thread's counters, for the ENTRY or EXIT at `sp` that follows.
void nfp_counters_write(struct nfp_thread *thread, uint32_t sp);
// counter_pages.c. See enum nfp_command.
long nfp_counters_begin(void);
long nfp_counters_set(uint64_t index, uint64_t count, uint64_t given, uint64_t change);
// Stops counting and returns the counters to the kernel.
void nfp_counters_end(void);

// validate.c, for programs that are `checked`. How many packets a batch structure holds; 0 as well when it cannot be
// read or cannot be a batch, which switches the program off.
uint32_t nfp_count_in_memory(struct nfp_program *program, uint64_t structure);
// Whether the packets of a call can be read and look like packets; if not, the program is switched off.
// `pointers` is the address of the array, or the pointer of a single packet.
int nfp_is_plausible(struct nfp_program *program, uint64_t pointers, uint32_t count);
// Whether so many of its calls were plausible that no more are looked at.
enum { NFP_PROOF_CALLS = 64 };
static inline int nfp_is_proven(const struct nfp_program *program)
{
	return !program->checked || __atomic_load_n(&program->proven, __ATOMIC_RELAXED) >= NFP_PROOF_CALLS;
}

enum { NFP_PAGE_SHIFT = 12, NFP_KNOWN_PAGES = 1024 };
// Numbers of pages that the kernel was asked about; what was readable for one thread is for all.
extern uint64_t nfp_known_pages[NFP_KNOWN_PAGES];
// As nfp_is_readable, for bytes on several pages, or on one that may be unknown.
int nfp_are_readable(uint64_t address, uint64_t bytes);

// Whether the bytes at an address can be read: the kernel was asked for their pages.
static inline int nfp_is_readable(uint64_t address, uint64_t bytes)
{
	uint64_t page = address >> NFP_PAGE_SHIFT;
	if (__builtin_expect(
	        page && bytes && page == (address + bytes - 1) >> NFP_PAGE_SHIFT &&
	            __atomic_load_n(&nfp_known_pages[page % NFP_KNOWN_PAGES], __ATOMIC_RELAXED) == page,
	        1))
		return 1;
	return nfp_are_readable(address, bytes);
}

// Copies memory of this process as the kernel sees it. Returns whether all of it is there.
int nfp_copy_readable(void *out, uint64_t address, uint64_t bytes);

// The program does nothing from now on; the first verdict stands. Returns 0.
int nfp_switch_off(struct nfp_program *program, enum nfp_verdict verdict, uint64_t offence);

// Describes a message by its topic, text that ends with a zero byte.
void nfp_message_write(struct nfp_thread *thread, uint32_t function, const char *topic);
// The same for a text at this address, or, of a vector, at the address that stands there. Nothing is written of what cannot be
// read.
void nfp_text_write(struct nfp_thread *thread, uint32_t function, uint64_t text, int is_vector);

// Reserves `count` adjacent slots, all of one lap. Returns the first, or NULL: lost and counted.
static inline struct nfp_record *nfp_reserve(struct nfp_thread *thread, uint32_t count, uint32_t loss)
{
	uint64_t bytes = (uint64_t)count * NFP_RECORD_BYTES;
	if (__builtin_expect(thread->cursor + bytes > thread->room, 0) && !nfp_make_room(thread, count, loss))
		return 0;
	return nfp_take(thread, count);
}

// Writes a reserved slot, and returns the next one. The tag goes last: it commits the slot (partner: nfp_drain's acquire
// load).
static inline struct nfp_record *nfp_put(struct nfp_record *slot, uint64_t value, uint32_t tag, uint32_t sp)
{
	slot->value = value;
	slot->sp = sp;
	__atomic_store_n(&slot->tag, tag + (uint32_t)(uintptr_t)slot, __ATOMIC_RELEASE);
	return slot + 1;
}
#endif
