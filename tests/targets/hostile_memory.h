// SPDX-License-Identifier: Apache-2.0
// Nonsense in the memory of a session: in its header, its arena table, its thread table; truncation.
#ifndef NFPROBE_TEST_HOSTILE_MEMORY_H
#define NFPROBE_TEST_HOSTILE_MEMORY_H
#include "hostile.h"
#include <sys/prctl.h>
#include <signal.h>

static long step(long x);
static const char *call_step(long count);

static void wrong_sizes(struct hostile_session *session)
{
	session->header->ring_bytes = session->header->ring_stride = 128 << 10;
}

static void add_arena(struct hostile_session *session, uint64_t address, uint64_t offset, uint64_t bytes,
                      uint64_t used)
{
	struct nfp_session_header *header = session->header;
	header->arena[header->arenas].address = address;
	header->arena[header->arenas].offset = offset;
	header->arena[header->arenas].bytes = bytes;
	header->arena[header->arenas].used = used;
	header->arenas++;
	header->arena_used = 4 << 20;
}

static uint64_t near_code(void)
{
	return ((uint64_t)(uintptr_t)step & ~0xfffffull) - (64 << 20);
}

// Of a target that belongs to the monitor's user: the code's own file is cut off under the monitor's hands.
static int cut_file(const struct nfp_session_header *header)
{
	int fd = open(header->message, O_RDWR);
	void *code = mmap((void *)header->argument[0], header->argument[1], PROT_READ | PROT_EXEC,
	                  MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
	return code != MAP_FAILED && ftruncate(fd, 0) == 0 ? 0 : -1;
}

static void cut_files(struct hostile_session *session)
{
	session->map_file = cut_file;
}

static void unaligned_arena(struct hostile_session *session)
{
	add_arena(session, near_code(), NFP_ARENA_OFFSET + 77, 1 << 20, 0);
}

static void overlapping_arenas(struct hostile_session *session)
{
	add_arena(session, near_code(), NFP_ARENA_OFFSET, 1 << 20, 0);
	add_arena(session, near_code() + (1 << 20), NFP_ARENA_OFFSET + (1 << 19), 1 << 20, 0);
}

static void arena_over_header(struct hostile_session *session)
{
	add_arena(session, near_code(), 4096, 1 << 20, 0);
}

static void overfull_arena(struct hostile_session *session)
{
	add_arena(session, near_code(), NFP_ARENA_OFFSET, 1 << 20, ~0ull - 64);
}

static void endless_arena(struct hostile_session *session)
{
	add_arena(session, near_code(), NFP_ARENA_OFFSET, ~0ull - NFP_ARENA_OFFSET - 4095, 0);
}

// It says that it has mapped it, and has not.
static void unmapped_arena(struct hostile_session *session)
{
	add_arena(session, near_code(), NFP_ARENA_OFFSET, 1 << 20, 0);
}

static void many_arenas(struct hostile_session *session)
{
	session->header->arenas = 1000000;
}

static void much_arena(struct hostile_session *session)
{
	session->header->arena_used = ~0ull - 4095;
}

static void full_tables(struct hostile_session *session)
{
	session->header->threads = session->header->probes = 0xffffffff;
}

// Counters that no thread can have.
static void absurd_counts(struct hostile_session *session)
{
	struct nfp_thread_shared *threads = (void *)(session->memory + NFP_THREAD_TABLE_OFFSET);
	session->header->threads = 4;
	for (int i = 0; i < 4; i++) {
		memset(&threads[i], 0xff, sizeof(threads[i]));
		threads[i].tid = (uint32_t)getpid();
		threads[i].state = NFP_THREAD_USED;
	}
}

static uint64_t random_word(void)
{
	static uint64_t state = 88172645463325252ull;
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

// Everything in the header that the trampolines and the mailbox do not need changes all the time.
static void flip_header(struct hostile_session *session)
{
	static volatile uint64_t *words, *arenas;
	struct nfp_session_header *header = session->header;
	words = (void *)header;
	for (int i = 0; i < 50; i++) {
		uint64_t bits = random_word();
		header->ring_bytes = header->ring_stride = header->total_bytes = bits;
		header->epoch = header->threads = header->probes = header->arenas = (uint32_t)bits;
		header->arena_used = bits & 1 ? bits : 0;
		header->kept_address = bits;
		header->calibrated_calls = header->counted_calls = bits & 3 ? 0 : (uint32_t)bits;
		header->calibrated_inside_ticks = header->calibrated_added_ticks = (uint32_t)(bits >> 32);
		arenas = (void *)header->arena;
		arenas[bits % (sizeof(header->arena) / 8)] = bits >> (bits & 31);
		words[0] = bits & 1 ? NFP_SESSION_MAGIC : bits;
	}
	header->ring_bytes = header->ring_stride = RING_BYTES;
	header->total_bytes = TOTAL_BYTES;
	header->magic = NFP_SESSION_MAGIC;
}

// What says which bytes are patched, and what stood there before: random, and again when the monitor has written.
static void scribble_table(struct hostile_session *session)
{
	volatile uint64_t *words = (void *)(session->memory + NFP_PROBE_TABLE_OFFSET);
	if (session->header->state == NFP_STATE_ARMED)
		for (int i = 0; i < 64; i++)
			words[random_word() % 128] = random_word() >> (random_word() & 63);
}

// As if it had patched another function, too, where nothing of the monitor is.
static void forge_entry(struct hostile_session *session)
{
	struct nfp_probe *probes = (void *)(session->memory + NFP_PROBE_TABLE_OFFSET);
	if (session->header->state != NFP_STATE_ARMED || session->header->probes != 1)
		return;
	probes[1] = probes[0];
	probes[1].site = (uint64_t)(uintptr_t)call_step;
	memset(probes[1].old_bytes, 0xcc, sizeof(probes[1].old_bytes));
	memcpy(probes[1].new_bytes, (void *)call_step, sizeof(probes[1].new_bytes));
	session->header->probes = 2;
}

static void truncate_session(struct hostile_session *session)
{
	uint64_t bytes = random_word() & 1 ? 0 : TOTAL_BYTES;
	if (ftruncate(session->fd, (off_t)bytes) != 0 || bytes == 0)
		_exit(9); // what is mapped here is gone, too
}

// In a process of its own: this one would get SIGBUS itself.
static void truncate_soon(struct hostile_session *session)
{
	if (fork() != 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;; usleep(50))
		if (session->header->request != 0)
			truncate_session(session);
}
#endif
