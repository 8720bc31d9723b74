// SPDX-License-Identifier: Apache-2.0
// What the core reads of a target besides its rings' records, as a hostile target may have it: the thread table and the
// positions in it, the mailbox in the header, numbers of descriptors. From noise to nearly right, also
// changed by a second thread while it is read. Never a byte outside (pages without rights around the session, ASan, UBSan),
// never more than is bounded. An argument: so many times as long.
#define _GNU_SOURCE
#include "check.h"
#include "descriptor.h"
#include "mailbox.h"
#include "pipeline.h"
#include "stamps.h"
#include "sweep.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include "abi/ring.h"
#include <pthread.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	RING_BYTES = NFP_RING_BYTES_MIN,
	SLOTS = RING_BYTES / NFP_RECORD_BYTES,
	ROOM = 5000,
	THREADS = 48, // whose rings are written
	LAST = 6, // that are taken for gone
	SWEEPS = 8,
	GUARD_BYTES = 1 << 20,
	TABLE_BYTES = NFP_THREAD_COUNT * sizeof(struct nfp_thread_shared),
	FUNCTIONS = NFP_ROLE_LAST + 1,
};

static struct {
	struct nfp_session_header *header;
	struct nfp_thread_shared *table;
	uint8_t *rings;
	int ends;
} shared;

// Whoever leaves it meets a page that nobody may touch.
static void *guarded(size_t bytes)
{
	size_t whole = (bytes + 4095) & ~(size_t)4095;
	uint8_t *start = mmap(NULL, whole + 2 * GUARD_BYTES, PROT_NONE,
	                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(start != MAP_FAILED && mprotect(start + GUARD_BYTES, whole, PROT_READ | PROT_WRITE) == 0);
	return start + GUARD_BYTES + whole - bytes; // the end is where an index that is too large comes to
}

// A number as what is meant for tables, sizes and addresses may go wrong with it.
static uint64_t odd_number(unsigned long *state)
{
	static const uint64_t edges[] = {0,          1,          15,         16,
	                                 RING_BYTES, INT32_MAX,  UINT32_MAX, 1ull << 32,
	                                 INT64_MAX,  1ull << 63, UINT64_MAX, (uint64_t)RING_BYTES * 1024};
	unsigned long random = next_random(state);
	return random & 1 ? random >> (random >> 1) % 63 : edges[(random >> 8) % 12] + (random >> 16) % 3 - 1;
}

// ---- the thread table and the rings ---------------------------------------------------------------------

static struct nfp_record odd_record(unsigned long *state, uint64_t position)
{
	unsigned long random = next_random(state);
	uint32_t kind = random % 8 ? (uint32_t)(random >> 8) % 40 : NFP_FILL;
	struct nfp_record record = {random >> 40 & 1 ? random : 1000 + position, 0, (uint32_t)(random >> 24)};
	record.tag = (kind << NFP_KIND_SHIFT | (uint32_t)(random >> 16) % FUNCTIONS) +
	             nfp_ring_low(position, RING_BYTES);
	if (random % 64 == 1)
		record.tag = (uint32_t)next_random(state);
	return record;
}

// A lap, with a hole here and there, from where the table says that the ring is read.
static void fill_ring(unsigned long *state, uint32_t thread)
{
	struct nfp_record *slots = (void *)(shared.rings + (uint64_t)thread * RING_BYTES);
	uint64_t position = shared.table[thread].tail & ~15ull, count = next_random(state) % (SLOTS + 1);
	for (uint64_t i = 0; i < count; i++, position += NFP_RECORD_BYTES)
		if (next_random(state) % 200)
			slots[position / NFP_RECORD_BYTES % SLOTS] = odd_record(state, position);
}

static void damage_table(unsigned long *state, uint32_t words)
{
	for (uint32_t i = 0; i < words; i++)
		((uint64_t *)shared.table)[next_random(state) % (TABLE_BYTES / 8)] = odd_number(state);
}

static void *scribble(void *unused)
{
	unsigned long state = 99;
	(void)unused;
	while (!__atomic_load_n(&shared.ends, __ATOMIC_RELAXED)) {
		uint32_t thread = (uint32_t)(next_random(&state) % THREADS);
		volatile uint64_t *ring = (void *)(shared.rings + (uint64_t)thread * RING_BYTES);
		volatile uint64_t *tail = (void *)&shared.table[thread].tail;
		uint64_t position = *tail + next_random(&state) % 64 * NFP_RECORD_BYTES;
		struct nfp_record record = odd_record(&state, position);
		uint64_t at = position / NFP_RECORD_BYTES % SLOTS * 2;
		ring[at] = record.value;
		ring[at + 1] = (uint64_t)record.sp << 32 | record.tag;
		if (next_random(&state) % 4096 == 0)
			*tail = odd_number(&state);
	}
	return NULL;
}

static void check_parts(const struct nfp_sweep *sweep, const struct nfp_sweep_part *parts, uint32_t count,
                        uint64_t *taken_of)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < count; i++) {
		CHECK(parts[i].thread < (sweep->is_over ? NFP_THREAD_COUNT : sweep->threads));
		CHECK(parts[i].count > 0);
		CHECK(i == 0 || sweep->is_over || parts[i - 1].thread < parts[i].thread);
		CHECK((taken_of[parts[i].thread] += parts[i].count) <= 4 * SLOTS);
		sum += parts[i].count;
	}
	CHECK(sum <= ROOM && sweep->next <= sweep->threads);
}

// Feeds what was taken, as session.py does.
static void feed(struct nfp_pipeline *pipeline, struct nfp_record *records,
                 const struct nfp_sweep_part *parts, uint32_t count)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < count; i++)
		sum += parts[i].count;
	nfp_stamps_bound(records, sum, 900, 1ull << 40);
	CHECK(nfp_pipeline_feed_parts(pipeline, parts, count, records, sum) == 0);
}

static uint64_t sweep_begun(struct nfp_sweep *sweep, struct nfp_pipeline *pipeline)
{
	static struct nfp_record records[ROOM];
	static struct nfp_sweep_part parts[NFP_THREAD_COUNT];
	uint64_t taken_of[NFP_THREAD_COUNT] = {0}, taken = 0, calls = 0;
	CHECK(sweep->threads <= NFP_THREAD_COUNT);
	while (sweep->next < sweep->threads) {
		uint32_t count = nfp_sweep_take(sweep, records, ROOM, parts);
		check_parts(sweep, parts, count, taken_of);
		feed(pipeline, records, parts, count);
		for (uint32_t i = 0; i < count; i++)
			taken += parts[i].count;
		CHECK(++calls <= 4ull * THREADS * SLOTS / ROOM + 2 * NFP_THREAD_COUNT);
	}
	return taken;
}

static uint64_t sweep_once(struct nfp_sweep *sweep, struct nfp_pipeline *pipeline, uint32_t threads,
                           const uint32_t *last, uint32_t last_count)
{
	struct nfp_columns columns;
	nfp_sweep_begin(sweep, threads, sweep->now_ns + 30000000);
	uint64_t taken = sweep_begun(sweep, pipeline);
	nfp_sweep_begin_last(sweep, last, last_count, sweep->now_ns);
	taken += sweep_begun(sweep, pipeline);
	nfp_pipeline_end_threads(pipeline, last, last_count);
	nfp_pipeline_take(pipeline, &columns);
	return taken;
}

static uint64_t fuzz_sweeps(int changes, unsigned long times)
{
	static struct nfp_ring_state states[NFP_THREAD_COUNT];
	uint8_t roles[FUNCTIONS], gone[NFP_THREAD_COUNT];
	uint32_t tids[NFP_THREAD_COUNT], last[LAST];
	unsigned long state = 5 + (unsigned)changes;
	uint64_t taken = 0;
	pthread_t thread;
	for (uint32_t i = 0; i < FUNCTIONS; i++)
		roles[i] = (uint8_t)i;
	shared.ends = 0;
	CHECK(!changes || pthread_create(&thread, NULL, scribble, NULL) == 0);
	for (unsigned long i = 0; i < times; i++) {
		struct nfp_pipeline *pipeline = nfp_pipeline_create(roles, FUNCTIONS);
		struct nfp_sweep sweep = {.rings = shared.rings,
		                          .table = shared.table,
		                          .states = states,
		                          .ring_bytes = RING_BYTES,
		                          .now_ns = 1};
		CHECK(pipeline != NULL);
		memset(states, 0, sizeof(states));
		damage_table(&state, 3000);
		for (int round = 0; round < 4; round++) {
			for (uint32_t ring = 0; ring < THREADS; ring++)
				fill_ring(&state, ring);
			for (uint32_t j = 0; j < LAST; j++)
				last[j] =
				    (uint32_t)(j % 2 ? odd_number(&state) : j * 8 + next_random(&state) % 8);
			taken += sweep_once(&sweep, pipeline, (uint32_t)odd_number(&state), last, LAST);
		}
		for (uint32_t j = 0; j < NFP_THREAD_COUNT; j++)
			tids[j] = shared.table[j].tid;
		nfp_threads_gone(getpid(), tids, NFP_THREAD_COUNT, gone);
		nfp_threads_free(shared.header, shared.table, last, LAST);
		nfp_pipeline_destroy(pipeline);
	}
	__atomic_store_n(&shared.ends, 1, __ATOMIC_RELAXED);
	if (changes)
		pthread_join(thread, NULL);
	return taken;
}

// ---- the mailbox ----------------------------------------------------------------------------------------

uint64_t nfp_now_ns(void) // of ptrace.c, which has nothing else to do with it
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// A helper that answers what was not asked, or too early, and anything.
static void *answer(void *unused)
{
	unsigned long state = 3;
	(void)unused;
	while (!__atomic_load_n(&shared.ends, __ATOMIC_RELAXED)) {
		volatile uint32_t *header = (void *)shared.header;
		uint32_t request = shared.header->request, near = next_random(&state) % 4 ? 0 : 1;
		*(volatile int32_t *)&shared.header->result = (int32_t)odd_number(&state);
		*(volatile uint32_t *)&shared.header->reply =
		    next_random(&state) % 2 ? request + near : (uint32_t)odd_number(&state);
		if (next_random(&state) % 256 == 0)
			header[next_random(&state) % (sizeof(*shared.header) / 4)] =
			    (uint32_t)odd_number(&state);
	}
	return NULL;
}

static int fuzz_mailbox(unsigned long times)
{
	const uint64_t arguments[4] = {1, 2, 3, 4};
	int answered = 0, memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	pthread_t thread;
	shared.ends = 0;
	CHECK(memory >= 0 && pthread_create(&thread, NULL, answer, NULL) == 0);
	for (unsigned long i = 0; i < times; i++) {
		int32_t result = 0;
		int said = nfp_mailbox_ask(shared.header, (uint32_t)i, arguments, 200000, memory, &result);
		CHECK(said == 0 || said == -ETIMEDOUT);
		answered += said == 0;
	}
	__atomic_store_n(&shared.ends, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	close(memory);
	return answered;
}

// ---- descriptors ----------------------------------------------------------------------------------------

static int count_descriptors(void)
{
	int count = 0;
	DIR *folder = opendir("/proc/self/fd");
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

// A target with descriptors of all kinds, its channel's numbers said through the pipe. It ends with this process.
static void be_target(int to_parent)
{
	int channel[2];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, channel) == 0);
	CHECK(memfd_create("some", MFD_ALLOW_SEALING) >= 0 && memfd_create("sealed", 0) >= 0);
	CHECK(open("/dev/null", O_RDWR) >= 0 && open("/", O_PATH) >= 0 &&
	      socket(AF_UNIX, SOCK_STREAM, 0) >= 0);
	CHECK(write(to_parent, channel, sizeof(channel)) == sizeof(channel));
	while (1)
		pause();
}

static int fuzz_descriptors(unsigned long times)
{
	unsigned long state = 31;
	int taken = 0, pipes[2], channel[2], before = count_descriptors();
	CHECK(pipe(pipes) == 0);
	pid_t target = fork();
	if (target == 0)
		be_target(pipes[1]);
	CHECK(read(pipes[0], channel, sizeof(channel)) == sizeof(channel));
	close(pipes[0]);
	close(pipes[1]);
	for (unsigned long i = 0; i < times; i++) {
		int number =
		    next_random(&state) % 4 ? (int)(next_random(&state) % 16) : (int)odd_number(&state);
		enum nfp_descriptor_kind kind =
		    next_random(&state) & 1 ? NFP_DESCRIPTOR_CHANNEL : NFP_DESCRIPTOR_MEMORY;
		int fd = nfp_descriptor_take(target, number, kind);
		if (fd >= 0) {
			CHECK(kind == NFP_DESCRIPTOR_CHANNEL ? number == channel[0] || number == channel[1]
			                                     : fcntl(fd, F_GET_SEALS) >= 0);
			CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
			close(fd);
			taken++;
		}
		CHECK(count_descriptors() == before);
	}
	kill(target, SIGKILL);
	waitpid(target, NULL, 0);
	return taken;
}

int main(int count, char **arguments)
{
	unsigned long times = count > 1 ? strtoul(arguments[1], NULL, 10) : 1;
	shared.header = guarded(sizeof(*shared.header));
	shared.table = guarded(TABLE_BYTES);
	shared.rings = guarded((uint64_t)NFP_THREAD_COUNT * RING_BYTES);
	uint64_t taken = fuzz_sweeps(0, SWEEPS * times), changing = fuzz_sweeps(1, SWEEPS * times);
	int answered = fuzz_mailbox(400 * times);
	int descriptors = fuzz_descriptors(300 * times);
	CHECK(taken > 100000 && changing > 100000 && answered > 10 && descriptors > 10);
	printf("shared: %lu records of hostile tables, %lu of changing ones; %d answers, %d descriptors\n",
	       (unsigned long)taken, (unsigned long)changing, answered, descriptors);
	return 0;
}
