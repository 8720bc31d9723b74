// SPDX-License-Identifier: Apache-2.0
// A ring of 16 MiB of the worst content that is known (attacks_*.c) takes a small multiple of the time of a good one, and
// bounded memory: drained, fed, taken in parts and counted as drain.py does. The good one is the costliest: what one
// thread has received and another one hands on. Each content has a process of its own, whose processor time is compared. Arguments: another factor (0: all figures, nothing is judged), and the
// name of one content.
#include "check.h"
#include "drain.h"
#include "pipeline.h"
#include "statistics.h"
#include "worst.h"
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	ROOM = 1 << 16, // DRAIN_ROOM_RECORDS of session.py
	PART = 1 << 17, // PART_RECORDS of drain.py
	TRIALS = 3, // of a content that is over the limit: the machine may be busy
	TIMES_MAX = 5, // of the costliest good one
	MEMORY_MAX_KIB = 336 << 10,
	SECONDS_MAX = 60,
};

static uint8_t ring[RING_RECORDS * NFP_RECORD_BYTES];
static struct nfp_record drained[ROOM];

struct taker {
	struct nfp_pipeline *pipeline;
	struct nfp_statistics *statistics;
	uint64_t untaken;
};

static void take(struct taker *taker, int is_part)
{
	struct nfp_columns columns;
	(is_part ? nfp_pipeline_take_part : nfp_pipeline_take)(taker->pipeline, &columns);
	CHECK(nfp_statistics_add(taker->statistics, &columns) == 0);
	taker->untaken = 0;
}

// The records of one thread, in a ring of the size that just holds them.
static void drain_thread(struct taker *taker, uint32_t thread, const struct nfp_record *records,
                         uint64_t count, uint64_t ring_bytes)
{
	uint64_t position = 0, found;
	struct nfp_drain_hole hole;
	for (uint64_t i = 0; i < ring_bytes / NFP_RECORD_BYTES; i++) {
		struct nfp_record *slot = (struct nfp_record *)ring + i;
		*slot = i < count ? records[i] : (struct nfp_record){0};
		slot->tag += i < count ? nfp_ring_low(i * NFP_RECORD_BYTES, ring_bytes) : 0;
	}
	while ((found = nfp_drain(ring, ring_bytes, &position, 1, drained, ROOM, &hole))) {
		CHECK(nfp_pipeline_feed(taker->pipeline, thread, drained, found) == 0);
		if ((taker->untaken += found) >= PART)
			take(taker, 1);
	}
	CHECK(position == count * NFP_RECORD_BYTES);
}

static void run(const struct content *content)
{
	uint8_t roles[FUNCTIONS];
	for (uint32_t i = 0; i < FUNCTIONS; i++)
		roles[i] = (uint8_t)i;
	struct taker taker = {nfp_pipeline_create(roles, FUNCTIONS), nfp_statistics_create(), 0};
	CHECK(taker.pipeline && taker.statistics);
	uint64_t of_thread = RING_RECORDS / content->threads;
	for (uint32_t i = 0; i < content->threads; i++)
		drain_thread(&taker, i, content->records + i * of_thread, of_thread,
		             of_thread * NFP_RECORD_BYTES);
	take(&taker, 0);
	take(&taker, 0);
	nfp_pipeline_finish(taker.pipeline);
	take(&taker, 0);
	nfp_statistics_destroy(taker.statistics);
	nfp_pipeline_destroy(taker.pipeline);
}

static double processor_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

struct cost {
	double processor_s;
	long memory_kib;
	int failed;
};

static void child(const struct named_content *named, int answer)
{
	static struct nfp_record records[RING_RECORDS];
	struct content content = {.records = records, .room = RING_RECORDS, .threads = 1, .ticks = 1000};
	setrlimit(RLIMIT_CPU, &(struct rlimit){SECONDS_MAX, SECONDS_MAX});
	named->fill(&content);
	CHECK(content.count == content.room);
	double before_s = processor_s();
	run(&content);
	double took_s = processor_s() - before_s;
	CHECK(write(answer, &took_s, sizeof(took_s)) == sizeof(took_s));
	_exit(0);
}

static struct cost measure(const struct named_content *named)
{
	struct cost cost = {0};
	struct rusage usage;
	int status, answer[2];
	CHECK(pipe(answer) == 0);
	pid_t pid = fork();
	if (pid == 0)
		child(named, answer[1]);
	close(answer[1]);
	if (read(answer[0], &cost.processor_s, sizeof(cost.processor_s)) != sizeof(cost.processor_s))
		cost.processor_s = SECONDS_MAX;
	close(answer[0]);
	CHECK(wait4(pid, &status, 0, &usage) == pid);
	cost.memory_kib = usage.ru_maxrss;
	cost.failed = status;
	return cost;
}

// Returns the costliest one's time.
static double measure_good(int says)
{
	double most_s = 0;
	for (const struct named_content *named = nfp_good; named->name; named++) {
		struct cost cost = measure(named);
		CHECK(!cost.failed);
		most_s = cost.processor_s > most_s ? cost.processor_s : most_s;
		if (says)
			printf("%-22s %8.1f ms %6ld MiB\n", named->name, cost.processor_s * 1e3,
			       cost.memory_kib >> 10);
	}
	return most_s;
}

// Returns how many times as long as a good one it takes; sets *over when that, or its memory, is too much.
static double judge(const struct named_content *named, double good_s, double times_max, int *over)
{
	struct cost cost = measure(named);
	for (int i = 1; i < TRIALS && times_max > 0 && cost.processor_s > times_max * good_s; i++) {
		struct cost again = measure(named);
		cost = again.processor_s < cost.processor_s ? again : cost;
	}
	double times = cost.processor_s / good_s;
	int is_over = cost.failed || times > times_max || cost.memory_kib > MEMORY_MAX_KIB;
	if (is_over)
		printf("%-22s %8.1f ms %6ld MiB %6.1f times%s\n", named->name, cost.processor_s * 1e3,
		       cost.memory_kib >> 10, times, cost.failed ? " failed" : "");
	fflush(stdout);
	*over |= is_over;
	return times;
}

int main(int count, char **arguments)
{
	const struct named_content *const attacks[] = {nfp_call_attacks, nfp_batch_attacks,
	                                               nfp_packet_attacks};
	double times_max = count > 1 ? atof(arguments[1]) : TIMES_MAX, worst = 0;
	double good_s = measure_good(times_max == 0);
	int over = 0;
	for (int i = 0; i < 3; i++)
		for (const struct named_content *named = attacks[i]; named->name; named++) {
			if (count > 2 && strcmp(arguments[2], named->name) != 0)
				continue;
			double times = judge(named, good_s, times_max, &over);
			worst = times > worst ? times : worst;
		}
	if (times_max > 0 && over)
		return 1;
	printf("worst: the worst ring takes %.1f times as long as a good one\n", worst);
	return 0;
}
