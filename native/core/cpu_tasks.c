// SPDX-License-Identifier: Apache-2.0
// See cpu_tasks.h.
#include "cpu_tasks.h"
#include "perf_records.h"
#include <linux/perf_event.h>
#include <string.h>

#define TASKS_TOLD_APART 32 // in one row: more tasks than these are not compared
#define IN_INTERRUPT 0x58 // of common_flags: TRACE_FLAG_HARDIRQ, _SOFTIRQ and _NMI

// ---- what ran -------------------------------------------------------------------------------------------------

static void end_run(struct nfp_cpu_event *event, uint64_t at_ns)
{
	if (event->runs && event->current.begin_ns && at_ns > event->current.begin_ns) {
		event->current.end_ns = at_ns;
		event->runs[event->run_count++ & (NFP_CPU_RUNS - 1)] = event->current;
	}
	event->current = (struct nfp_cpu_run){0};
}

static void read_switch(struct nfp_cpu_event *event, const struct nfp_cpu_layout *layout,
                        const struct nfp_perf_sample *sample)
{
	struct nfp_cpu_run next = {.begin_ns = sample->head.time_ns};
	uint32_t previous = 0;
	event->switches++;
	if (!nfp_perf_field(sample, layout->previous_at, &previous, sizeof(previous)) ||
	    !nfp_perf_field(sample, layout->next_at, &next.tid, sizeof(next.tid)))
		return;
	(void)nfp_perf_field(sample, layout->next_name_at, next.name, sizeof(next.name));
	next.name[sizeof(next.name) - 1] = 0;
	// The end of an idle time has no sample: what ran after it is not known.
	if (event->current.tid != previous && event->current.tid)
		event->current.begin_ns = 0;
	end_run(event, sample->head.time_ns);
	event->current = next;
}

static void read_waking(struct nfp_cpu_reader *reader, const struct nfp_perf_sample *sample)
{
	struct nfp_cpu_waking waking = {.at_ns = sample->head.time_ns};
	uint8_t flags = 0;
	if (!nfp_perf_field(sample, reader->layout.woken_at, &waking.woken, sizeof(waking.woken)))
		return;
	// struct trace_entry: type, flags, preemption count, thread ID.
	(void)nfp_perf_field(sample, 2, &flags, sizeof(flags));
	(void)nfp_perf_field(sample, NFP_PERF_TID_AT, &waking.waker, sizeof(waking.waker));
	waking.in_interrupt = !!(flags & IN_INTERRUPT);
	reader->wakings[reader->waking_count++ & (NFP_CPU_WAKINGS - 1)] = waking;
}

static void read_record(struct nfp_cpu_reader *reader, struct nfp_cpu_event *event, const uint8_t *bytes,
                        uint32_t there)
{
	struct nfp_perf_sample sample;
	struct perf_event_header header;
	memcpy(&header, bytes, sizeof(header));
	if (header.type == PERF_RECORD_SAMPLE && nfp_perf_sample_read(&sample, bytes, there)) {
		uint16_t id = 0;
		(void)nfp_perf_field(&sample, 0, &id, sizeof(id));
		if (id == reader->layout.switch_id)
			read_switch(event, &reader->layout, &sample);
		else if (id == reader->layout.waking_id)
			read_waking(reader, &sample);
		return;
	}
	if (header.type == PERF_RECORD_UNTHROTTLE)
		return;
	event->current = (struct nfp_cpu_run){0};
	reader->lost += header.type != PERF_RECORD_THROTTLE;
}

void nfp_cpus_read(struct nfp_cpu_reader *reader)
{
	uint8_t bytes[NFP_PERF_RECORD_BYTES];
	for (uint32_t i = 0; i < reader->count; i++) {
		struct nfp_cpu_event *event = &reader->events[i];
		if (!event->page)
			continue;
		struct nfp_perf_ring ring = nfp_perf_ring_open(event->page, event->ring, event->ring_bytes);
		for (uint32_t there; (there = nfp_perf_ring_next(&ring, bytes));)
			read_record(reader, event, bytes, there);
		nfp_perf_ring_close(&ring);
	}
}

// ---- rows -----------------------------------------------------------------------------------------------------

struct task {
	uint32_t tid;
	uint64_t ran_ns, longest_ns, begin_ns; // in all, its longest run, and that one's begin
	const char *name;
};

static void add_run(struct task *tasks, uint32_t *count, const struct nfp_cpu_run *run,
                    const struct nfp_absence *row)
{
	uint64_t begin_ns = run->begin_ns > row->out_ns ? run->begin_ns : row->out_ns;
	uint64_t end_ns = run->end_ns < row->in_ns ? run->end_ns : row->in_ns, ran_ns = end_ns - begin_ns;
	if (begin_ns >= end_ns)
		return;
	uint32_t i = 0;
	while (i < *count && tasks[i].tid != run->tid)
		i++;
	if (i == TASKS_TOLD_APART)
		return;
	if (i == *count)
		tasks[(*count)++] = (struct task){.tid = run->tid};
	tasks[i].ran_ns += ran_ns;
	if (ran_ns >= tasks[i].longest_ns) {
		tasks[i].longest_ns = ran_ns;
		tasks[i].begin_ns = run->begin_ns;
		tasks[i].name = run->name;
	}
}

// Who woke a task last in [since, ran]; NULL: not known.
static const struct nfp_cpu_waking *find_waking(const struct nfp_cpu_reader *reader, uint32_t tid,
                                                uint64_t since_ns, uint64_t ran_ns)
{
	uint32_t kept = reader->waking_count < NFP_CPU_WAKINGS ? reader->waking_count : NFP_CPU_WAKINGS;
	const struct nfp_cpu_waking *found = NULL;
	for (uint32_t i = 1; i <= kept; i++) { // those of one CPU are in order, but not those of all
		const struct nfp_cpu_waking *waking =
		    &reader->wakings[(reader->waking_count - i) & (NFP_CPU_WAKINGS - 1)];
		if (waking->woken == tid && waking->at_ns <= ran_ns && waking->at_ns >= since_ns &&
		    (!found || waking->at_ns > found->at_ns))
			found = waking;
	}
	return found;
}

static void name_waker(const struct nfp_cpu_reader *reader, uint32_t tid, uint64_t since_ns, uint64_t ran_ns,
                       struct nfp_absence *row)
{
	const struct nfp_cpu_waking *waking = find_waking(reader, tid, since_ns, ran_ns);
	if (!waking)
		return;
	row->waker = waking->waker;
	row->woken_ns = waking->at_ns;
	if (waking->in_interrupt)
		row->flags |= NFP_ABSENCE_WOKEN_BY_INTERRUPT;
}

// A task that was not woken since it ran last has only continued.
static uint64_t find_last_end(const struct nfp_cpu_event *event, uint32_t tid, uint64_t begin_ns)
{
	uint64_t earliest_ns = begin_ns > NFP_CPU_WAKING_NS_MAX ? begin_ns - NFP_CPU_WAKING_NS_MAX : 0;
	uint32_t kept = event->run_count < NFP_CPU_RUNS ? event->run_count : NFP_CPU_RUNS;
	for (uint32_t i = 1; i <= kept; i++) {
		const struct nfp_cpu_run *run = &event->runs[(event->run_count - i) & (NFP_CPU_RUNS - 1)];
		if (run->end_ns < earliest_ns)
			break;
		if (run->tid == tid && run->end_ns <= begin_ns)
			return run->end_ns;
	}
	return earliest_ns;
}

static void name_task(const struct nfp_cpu_reader *reader, const struct nfp_cpu_event *event, uint32_t tid,
                      struct nfp_absence *row)
{
	struct task tasks[TASKS_TOLD_APART];
	uint32_t count = 0, kept = event->run_count < NFP_CPU_RUNS ? event->run_count : NFP_CPU_RUNS;
	struct nfp_cpu_run current = event->current;
	current.end_ns = current.begin_ns ? UINT64_MAX : 0;
	add_run(tasks, &count, &current, row);
	for (uint32_t i = 1; i <= kept; i++) {
		const struct nfp_cpu_run *run = &event->runs[(event->run_count - i) & (NFP_CPU_RUNS - 1)];
		if (run->end_ns <= row->out_ns)
			break;
		if (run->tid != tid)
			add_run(tasks, &count, run, row);
	}
	const struct task *longest = NULL;
	for (uint32_t i = 0; i < count; i++)
		if (tasks[i].tid != tid && (!longest || tasks[i].ran_ns > longest->ran_ns))
			longest = &tasks[i];
	if (!longest)
		return;
	row->code = longest->tid;
	row->part_ns = longest->ran_ns;
	memcpy(row->name, longest->name, sizeof(row->name));
	if (longest->tid)
		name_waker(reader, longest->tid, find_last_end(event, longest->tid, longest->begin_ns),
		           longest->begin_ns, row);
}

void nfp_cpus_explain(const struct nfp_cpu_reader *reader, uint32_t tid, struct nfp_absence *row)
{
	if (!(row->flags & NFP_ABSENCE_PREEMPTED)) {
		name_waker(reader, tid, row->out_ns, row->in_ns, row);
		return;
	}
	for (uint32_t i = 0; i < reader->count; i++)
		if (reader->events[i].page && reader->events[i].runs &&
		    reader->events[i].cpu == row->from_cpu) {
			name_task(reader, &reader->events[i], tid, row);
			return;
		}
}
