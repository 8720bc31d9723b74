// SPDX-License-Identifier: Apache-2.0
// What keeps the worker from its packets, as the program itself can know it: the truth that a measurement's causes are
// compared with (--faults FILE). Lines, times in ticks:
//
//   output START END       a slow output (port.c)
//   flow START END         a batch with a packet of the slow flow, which has far more rules to pass
//   burst TIME PACKETS     so many packets of one flow arrived at once (generator.c)
//   preempted START END    the kernel gave the CPU to others for so long; when between two looks is not known
//   unknown START END      nothing of the above, and yet the program stood still: a debugger, or the machine itself
//                          (where it is a virtual one, its host)
//   backlog START END      polls were full from the first to the last: the queue was never empty
//
// Asking the kernel costs a system call per batch: only with --faults.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "firewall.h"

// Longer than this is looked at: a gap between two polls, and a batch with what preceded it.
#define POLL_US 20.0
#define BATCH_US 200.0

volatile uint32_t fw_stage;

static long count_preemptions(void)
{
	struct rusage usage;
	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nivcsw;
}

// How long the worker has waited for a CPU while others ran there, ever. 0: the kernel does not say.
static uint64_t read_waited_ns(const struct fw_watch *watch)
{
	char text[64] = "";
	if (watch->schedstat < 0 || pread(watch->schedstat, text, sizeof(text) - 1, 0) <= 0)
		return 0;
	char *second;
	strtoull(text, &second, 10);
	return strtoull(second, NULL, 10);
}

static uint64_t read_cpu_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void fw_watch_init(struct fw_watch *watch, FILE *log, double ticks_per_second)
{
	*watch = (struct fw_watch){.log = log, .ticks_per_ns = ticks_per_second / 1e9};
	if (!log)
		return;
	watch->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	watch->preempted = count_preemptions();
	watch->waited_ns = read_waited_ns(watch);
	watch->cpu_ns = read_cpu_ns();
	watch->checked = watch->polled = fw_ticks();
}

static void say(const struct fw_watch *watch, const char *what, uint64_t start, uint64_t end)
{
	fprintf(watch->log, "%s %lu %lu\n", what, (unsigned long)start, (unsigned long)end);
}

// Was the CPU taken away since the last look? Whatever it was, it began at `since` or later.
// `known`: a fault that is logged explains the rest.
static void check(struct fw_watch *watch, uint64_t since, int known, double limit_us)
{
	uint64_t now = fw_ticks(), cpu_ns = read_cpu_ns();
	uint64_t ran = (uint64_t)((double)(cpu_ns - watch->cpu_ns) * watch->ticks_per_ns);
	uint64_t away = now - watch->checked > ran ? now - watch->checked - ran : 0;
	long preempted = count_preemptions();
	if (away > now - since)
		away = now - since;
	if (preempted != watch->preempted) {
		// A host that takes the CPU of a virtual machine is away, too, and often preempted next: not for all that time.
		uint64_t waited_ns = read_waited_ns(watch);
		uint64_t waited = (uint64_t)((double)(waited_ns - watch->waited_ns) * watch->ticks_per_ns);
		if (watch->schedstat >= 0 && waited < away)
			away = waited;
		watch->waited_ns = waited_ns;
		say(watch, "preempted", since, since + away);
		since += away;
	}
	if (!known && (double)(now - since) > 1000 * limit_us * watch->ticks_per_ns)
		say(watch, "unknown", since, now);
	watch->preempted = preempted;
	watch->cpu_ns = cpu_ns;
	watch->checked = now;
}

// After each poll.
void fw_watch_poll(struct fw_watch *watch, uint64_t start, uint32_t count)
{
	if (!watch->log)
		return;
	// Polls that find nothing take no time: asking after each would be most of what the worker does.
	if (count || (double)(fw_ticks() - watch->polled) > 1000 * POLL_US * watch->ticks_per_ns)
		check(watch, watch->polled, 0, POLL_US);
	watch->polled = fw_ticks();
	if (count == FW_BURST && !watch->backlog_since)
		watch->backlog_since = watch->poll ? watch->poll : start;
	if (count < FW_BURST && watch->backlog_since) {
		say(watch, "backlog", watch->backlog_since, start);
		watch->backlog_since = 0;
	}
	watch->poll = count ? start : 0;
}

// After each batch.
void fw_watch_batch(struct fw_watch *watch, const struct fw_rules *rules, uint64_t start,
                    struct fw_packet **packets, uint32_t count, uint64_t slow_outputs)
{
	if (!watch->log)
		return;
	int slow = 0, output = slow_outputs != watch->slow_outputs;
	watch->slow_outputs = slow_outputs;
	for (uint32_t i = 0; i < count; i++)
		slow |= packets[i]->rule == rules->slow;
	if (slow)
		say(watch, "flow", start, fw_ticks());
	check(watch, watch->polled, slow || output, BATCH_US);
	watch->polled = fw_ticks();
}
