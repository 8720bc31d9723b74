// SPDX-License-Identifier: Apache-2.0
// See absences.h.
#include "absences.h"
#include "perf_records.h"
#include <linux/perf_event.h>
#include <string.h>

#define STOLEN_NS_MIN 20000 // less is the time between the scheduler's reading of its clock and perf's
#define NET_TX_SOFTIRQ 2 // include/linux/interrupt.h
#define NET_RX_SOFTIRQ 3
#define INTERRUPTED_NS_MIN 3000 // between two updates: less tells nothing of whether run times contain it
#define UPDATES_MIN 16 // after which it is known whether they do
#define RETURN_NS_MAX 1000000 // from the CPU to the end of a page fault that slept

struct taking {
	struct nfp_absence_reader *reader;
	struct nfp_absence_event *event;
	struct nfp_absence *rows;
	uint32_t count;
	int is_late; // the record that is read belongs before others that were read already
	struct nfp_absence *slept; // the last row, if the thread slept
};

static struct nfp_absence *add_row(struct taking *taking, uint32_t kind, uint64_t out_ns, uint64_t in_ns,
                                   uint32_t cpu)
{
	struct nfp_absence *row = &taking->rows[taking->count++];
	*row = (struct nfp_absence){
	    .out_ns = out_ns, .in_ns = in_ns, .kind = kind, .from_cpu = cpu, .to_cpu = cpu};
	row->flags = taking->event->flags & NFP_ABSENCE_INCOMPLETE;
	taking->slept = NULL;
	return row;
}

// ---- page faults ------------------------------------------------------------------------------------------

// What was served of the open page fault until now is a row; the rest of it is served from `again_ns` on.
static void close_fault(struct taking *taking, uint64_t until_ns, uint32_t cpu, uint32_t flags,
                        uint64_t again_ns)
{
	struct nfp_absence_event *event = taking->event;
	if (event->fault_ns && until_ns > event->fault_ns) {
		struct nfp_absence *row = add_row(taking, NFP_ABSENCE_FAULT, event->fault_ns, until_ns, cpu);
		row->address = event->fault_address;
		row->flags |= flags;
	}
	event->fault_ns = again_ns;
}

static void read_fault(struct taking *taking, const struct nfp_perf_sample *sample)
{
	struct nfp_absence_event *event = taking->event;
	uint64_t now_ns = sample->head.time_ns;
	if (sample->id == event->fault_ids[NFP_FAULT_BEGIN]) {
		event->fault_ns = event->depth ? 0 : now_ns; // one in an interrupt is the interrupt's
		event->fault_address = sample->address;
		return;
	}
	uint32_t major = sample->id == event->fault_ids[NFP_FAULT_MAJOR] ? (uint32_t)NFP_ABSENCE_MAJOR : 0;
	struct nfp_absence *slept = taking->slept;
	event->faults += !major;
	if (major && slept && now_ns - slept->in_ns < RETURN_NS_MAX) {
		slept->kind = NFP_ABSENCE_FAULT;
		slept->flags |= major;
		slept->address = sample->address;
	}
	close_fault(taking, now_ns, sample->head.cpu, major, 0);
}

// ---- the scheduler ----------------------------------------------------------------------------------------

static void switch_out(struct taking *taking, const struct nfp_perf_switch *record)
{
	struct nfp_absence_event *event = taking->event;
	int preempted = record->header.misc & PERF_RECORD_MISC_SWITCH_OUT_PREEMPT;
	close_fault(taking, record->time_ns, record->cpu, 0, event->fault_ns ? record->time_ns : 0);
	event->out_ns = record->time_ns;
	event->out_cpu = record->cpu;
	event->sleeps += !preempted;
	event->flags =
	    (event->flags & NFP_ABSENCE_INCOMPLETE) | (preempted ? (uint32_t)NFP_ABSENCE_PREEMPTED : 0);
	event->depth = 0;
	event->updated_ns = 0;
}

static void name_switch(struct nfp_absence_reader *reader, struct nfp_absence *row,
                        const struct nfp_absence_event *event)
{
	row->code = event->next_code;
	memcpy(row->name, event->next_name, sizeof(row->name));
	if (row->flags & NFP_ABSENCE_PREEMPTED)
		return;
	if (event->sleep.count && reader->sleep_count < reader->sleep_room) {
		reader->sleeps[reader->sleep_count] = event->sleep;
		row->sleep = ++reader->sleep_count;
	}
	if (event->fault_ns) {
		row->kind = NFP_ABSENCE_FAULT;
		row->flags |= NFP_ABSENCE_MAJOR;
		row->address = event->fault_address;
	}
}

static void switch_in(struct taking *taking, const struct nfp_perf_switch *record)
{
	struct nfp_absence_event *event = taking->event;
	if (event->out_ns) { // else it is not known when it went
		struct nfp_absence *row =
		    add_row(taking, NFP_ABSENCE_SWITCH, event->out_ns, record->time_ns, event->out_cpu);
		row->to_cpu = record->cpu;
		row->flags = event->flags;
		name_switch(taking->reader, row, event);
		taking->slept = row->flags & NFP_ABSENCE_PREEMPTED ? NULL : row;
		event->flags = 0;
	}
	event->out_ns = event->next_code = event->sleep.count = 0;
	memset(event->next_name, 0, sizeof(event->next_name));
	event->depth = 0;
	event->updated_ns = record->time_ns;
	event->interrupted_ns = 0;
	event->fault_ns = event->fault_ns ? record->time_ns : 0;
}

// ---- samples of tracepoints ---------------------------------------------------------------------------------

static uint32_t read_code(const struct nfp_perf_sample *sample, const struct nfp_tracepoint *tracepoint)
{
	uint32_t code = tracepoint->code;
	(void)nfp_perf_field(sample, tracepoint->code_at, &code, sizeof(code));
	return code;
}

static uint64_t read_value(const struct nfp_perf_sample *sample, const struct nfp_tracepoint *tracepoint)
{
	uint64_t value = 0;
	(void)nfp_perf_field(sample, tracepoint->value_at, &value, sizeof(value));
	return value;
}

static void read_name(const struct nfp_perf_sample *sample, const struct nfp_tracepoint *tracepoint,
                      char *name)
{
	uint32_t location = 0, bytes = NFP_ABSENCE_NAME_BYTES, at = tracepoint->name_at;
	memset(name, 0, NFP_ABSENCE_NAME_BYTES);
	if (nfp_perf_field(sample, tracepoint->name_location_at, &location, sizeof(location))) {
		at = location & 0xffff;
		bytes = location >> 16 < bytes ? location >> 16 : bytes;
	}
	(void)nfp_perf_field(sample, at, name, bytes);
	name[NFP_ABSENCE_NAME_BYTES - 1] = 0;
}

// The time since the last change belongs to the innermost interrupt.
static void close_piece(struct taking *taking, const struct nfp_perf_switch *record, uint64_t until_ns)
{
	struct nfp_absence_event *event = taking->event;
	if (event->depth && until_ns > event->piece_ns) {
		const struct nfp_open_interrupt *open = &event->open[event->depth - 1];
		struct nfp_absence *row = add_row(taking, open->kind, event->piece_ns, until_ns, record->cpu);
		row->flags |= NFP_ABSENCE_PREEMPTED;
		row->code = open->code;
		memcpy(row->name, open->name, sizeof(row->name));
		event->interrupted_ns += until_ns - event->piece_ns;
	}
	event->piece_ns = until_ns;
}

static void begin_interrupt(struct taking *taking, const struct nfp_perf_sample *sample,
                            const struct nfp_tracepoint *tracepoint, uint64_t at_ns)
{
	struct nfp_absence_event *event = taking->event;
	close_piece(taking, &sample->head, at_ns);
	if (!event->depth)
		close_fault(taking, at_ns, sample->head.cpu, 0, event->fault_ns ? at_ns : 0);
	if (event->depth == NFP_ABSENCE_DEPTH) { // its ends were lost
		event->depth = 0;
		event->flags |= NFP_ABSENCE_INCOMPLETE;
	}
	struct nfp_open_interrupt *open = &event->open[event->depth++];
	open->kind = tracepoint->kind;
	open->code = read_code(sample, tracepoint);
	event->network_softirqs += open->kind == NFP_ABSENCE_SOFTIRQ &&
	                           (open->code == NET_TX_SOFTIRQ || open->code == NET_RX_SOFTIRQ);
	read_name(sample, tracepoint, open->name);
}

static void end_interrupt(struct taking *taking, const struct nfp_perf_switch *record)
{
	close_piece(taking, record, record->time_ns);
	struct nfp_absence_event *event = taking->event;
	if (event->depth && !--event->depth && event->fault_ns)
		event->fault_ns = record->time_ns;
}

// Run times contain interrupts, unless the kernel counts these by themselves (IRQ_TIME_ACCOUNTING): then at least that
// much is missing from each. So is what was stolen, but not between most updates.
static void learn_run_time(struct nfp_absence_reader *reader, uint64_t missing_ns, uint64_t interrupted_ns)
{
	if (interrupted_ns < INTERRUPTED_NS_MIN)
		return;
	if (missing_ns < interrupted_ns / 2)
		reader->with_interrupts++;
	else
		reader->without_interrupts++;
}

static int contains_interrupts(const struct nfp_absence_reader *reader)
{
	uint64_t known = reader->with_interrupts + reader->without_interrupts;
	return known >= UPDATES_MIN && 4 * reader->with_interrupts >= known;
}

// Wall time minus run time is steal time, where the scheduler's clock leaves it out; it may leave out interrupts, too.
// Where it does not, steal time within an interrupt is seen as well.
static void update_run_time(struct taking *taking, const struct nfp_perf_switch *record, uint64_t ran_ns)
{
	struct nfp_absence_event *event = taking->event;
	uint64_t since_ns = event->updated_ns, interrupted_ns = event->interrupted_ns;
	event->updated_ns = record->time_ns;
	event->interrupted_ns = 0;
	if (!since_ns || record->time_ns <= since_ns)
		return;
	uint64_t wall_ns = record->time_ns - since_ns; // by another clock, read a little later
	uint64_t missing_ns = wall_ns > ran_ns ? wall_ns - ran_ns : 0;
	learn_run_time(taking->reader, missing_ns, interrupted_ns);
	uint64_t known_ns = contains_interrupts(taking->reader) ? 0 : interrupted_ns;
	if (missing_ns > known_ns && missing_ns - known_ns >= STOLEN_NS_MIN)
		add_row(taking, NFP_ABSENCE_STEAL, since_ns, record->time_ns, record->cpu)->part_ns =
		    missing_ns - known_ns;
}

static void note_sleep(struct taking *taking, const struct nfp_perf_sample *sample)
{
	struct nfp_sleep *sleep = &taking->event->sleep;
	sleep->argument = sample->argument;
	sleep->count = 0;
	for (uint32_t i = 0; i < sample->frame_count && sleep->count < NFP_ABSENCE_FRAMES; i++)
		if (sample->frames[i] < (uint64_t)PERF_CONTEXT_MAX)
			sleep->frames[sleep->count++] = sample->frames[i];
}

static void read_sample(struct taking *taking, const struct nfp_perf_sample *sample,
                        const struct nfp_tracepoint *tracepoint)
{
	struct nfp_absence_event *event = taking->event;
	uint64_t now_ns = sample->head.time_ns, took_ns;
	switch (tracepoint->role) {
	case NFP_TRACEPOINT_BEGIN:
		begin_interrupt(taking, sample, tracepoint, now_ns);
		break;
	case NFP_TRACEPOINT_END:
		end_interrupt(taking, &sample->head);
		break;
	case NFP_TRACEPOINT_DURATION:
		took_ns = read_value(sample, tracepoint);
		begin_interrupt(taking, sample, tracepoint, now_ns - (took_ns < now_ns ? took_ns : 0));
		end_interrupt(taking, &sample->head);
		break;
	case NFP_TRACEPOINT_SWITCH:
		if (taking->is_late && !event->out_ns) // of a switch that has been told without it
			break;
		if (sample->frame_count) {
			note_sleep(taking, sample);
			break;
		}
		event->next_code = read_code(sample, tracepoint);
		read_name(sample, tracepoint, event->next_name);
		break;
	case NFP_TRACEPOINT_RUN_TIME:
		if (read_code(sample, tracepoint) == event->global_tid)
			update_run_time(taking, &sample->head, read_value(sample, tracepoint));
		break;
	default:
		break;
	}
}

static const struct nfp_tracepoint *find_tracepoint(const struct nfp_absence_reader *reader,
                                                    const struct nfp_perf_sample *sample)
{
	uint16_t id = 0;
	(void)nfp_perf_field(sample, 0, &id, sizeof(id));
	for (uint32_t i = 0; i < reader->tracepoint_count && i < NFP_TRACEPOINTS_MAX; i++)
		if (reader->tracepoints[i].id == id)
			return &reader->tracepoints[i];
	return NULL;
}

// ---- buffers ------------------------------------------------------------------------------------------------

static int is_fault(const struct nfp_absence_event *event, const struct nfp_perf_sample *sample)
{
	for (uint32_t i = 0; i < NFP_FAULT_EVENTS; i++)
		if (event->fault_ids[i] && event->fault_ids[i] == sample->id)
			return 1;
	return 0;
}

static void take_sample(struct taking *taking, const struct nfp_perf_sample *sample)
{
	taking->event->last_cpu = sample->head.cpu;
	if (is_fault(taking->event, sample)) {
		read_fault(taking, sample);
		return;
	}
	const struct nfp_tracepoint *tracepoint = find_tracepoint(taking->reader, sample);
	if (!tracepoint)
		return;
	(void)nfp_perf_field(sample, NFP_PERF_TID_AT, &taking->event->global_tid, sizeof(uint32_t));
	read_sample(taking, sample, tracepoint);
}

// What was lost is not known; of the first buffer it may be a switch: then what comes back need not be what went last.
static void note_loss(struct taking *taking, const struct nfp_perf_switch *record, int may_be_switch)
{
	struct nfp_absence_event *event = taking->event;
	event->updated_ns = 0;
	event->depth = 0;
	event->fault_ns = 0;
	event->flags |= NFP_ABSENCE_INCOMPLETE;
	taking->slept = NULL;
	if (record->header.type ==
	    PERF_RECORD_THROTTLE) { // samples of one tracepoint are held back until the next tick
		taking->reader->throttled++;
		return;
	}
	taking->reader->lost++;
	if (!may_be_switch)
		return;
	event->out_ns = 0;
	event->sleep.count = 0;
	event->flags = NFP_ABSENCE_INCOMPLETE;
}

// One of a thread's buffers, and the next record of it.
struct source {
	struct nfp_perf_ring ring;
	uint32_t there; // bytes of the record; 0: there is none
	uint8_t bytes[NFP_PERF_RECORD_BYTES];
};

static uint64_t time_of(const struct source *source)
{
	struct nfp_perf_switch record;
	memcpy(&record, source->bytes, sizeof(record));
	int is_timed = record.header.type == PERF_RECORD_SWITCH || record.header.type == PERF_RECORD_SAMPLE;
	return is_timed ? record.time_ns : 0;
}

static void read_record(struct taking *taking, const struct source *source, int may_be_switch)
{
	struct nfp_perf_switch record;
	struct nfp_perf_sample sample;
	struct nfp_absence_event *event = taking->event;
	memcpy(&record, source->bytes, sizeof(record));
	if (record.header.type == PERF_RECORD_SWITCH && record.header.size == sizeof(record)) {
		if (record.time_ns < event->read_ns)
			record.time_ns = event->read_ns;
		event->last_cpu = record.cpu;
		if (record.header.misc & PERF_RECORD_MISC_SWITCH_OUT)
			switch_out(taking, &record);
		else
			switch_in(taking, &record);
		return;
	}
	if (record.header.type == PERF_RECORD_SAMPLE &&
	    nfp_perf_sample_read(&sample, source->bytes, source->there)) {
		taking->is_late = sample.head.time_ns < event->read_ns;
		if (taking->is_late)
			sample.head.time_ns = event->read_ns;
		take_sample(taking, &sample);
		return;
	}
	if (record.header.type != PERF_RECORD_UNTHROTTLE)
		note_loss(taking, &record, may_be_switch);
}

// Returns the buffer whose record comes first, of equal ones the first; NULL: there is none.
static struct source *find_first(struct source *sources)
{
	struct source *first = NULL;
	for (uint32_t i = 0; i < NFP_ABSENCE_BUFFERS; i++)
		if (sources[i].there && (!first || time_of(&sources[i]) < time_of(first)))
			first = &sources[i];
	return first;
}

// All buffers in the order of time. A record that the kernel wrote into one after it was opened here, and before the next
// was, comes with the next look, late: its time is then taken for that of the last one before it. The scheduler's is
// opened last.
static uint32_t take(struct nfp_absence_reader *reader, struct nfp_absence_event *event,
                     struct nfp_absence *rows)
{
	struct taking taking = {.reader = reader, .event = event, .rows = rows};
	struct source sources[NFP_ABSENCE_BUFFERS], *source;
	for (uint32_t i = NFP_ABSENCE_BUFFERS; i-- > 0;) {
		const struct nfp_absence_buffer *buffer = &event->buffers[i];
		sources[i].there = 0;
		if (buffer->page)
			sources[i].ring = nfp_perf_ring_open(buffer->page, buffer->ring, buffer->ring_bytes);
	}
	for (uint32_t i = 0; i < NFP_ABSENCE_BUFFERS; i++)
		if (event->buffers[i].page)
			sources[i].there = nfp_perf_ring_next(&sources[i].ring, sources[i].bytes);
	while ((source = find_first(sources))) {
		read_record(&taking, source, source == &sources[0]);
		if (time_of(source) > event->read_ns)
			event->read_ns = time_of(source);
		source->there = nfp_perf_ring_next(&source->ring, source->bytes);
	}
	for (uint32_t i = 0; i < NFP_ABSENCE_BUFFERS; i++)
		if (event->buffers[i].page)
			nfp_perf_ring_close(&sources[i].ring);
	return taking.count;
}

static uint64_t bytes_of(const struct nfp_absence_event *event)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < NFP_ABSENCE_BUFFERS; i++)
		bytes += event->buffers[i].ring_bytes;
	return bytes;
}

uint32_t nfp_absences_take(struct nfp_absence_reader *reader, struct nfp_absence *rows, uint32_t room)
{
	uint32_t taken = 0;
	reader->sleep_count = 0;
	for (; reader->next < reader->count; reader->next++) {
		struct nfp_absence_event *event = &reader->events[reader->next];
		if (!event->buffers[0].page)
			continue;
		// A record makes at most two rows.
		if (room - taken < 2 * bytes_of(event) / sizeof(struct nfp_perf_switch))
			break;
		uint32_t found = take(reader, event, rows + taken);
		for (uint32_t i = 0; i < found; i++)
			rows[taken + i].event = reader->next;
		taken += found;
	}
	return taken;
}
