// SPDX-License-Identifier: Apache-2.0
// See absences.h.
#include "absences.h"
#include <linux/perf_event.h>
#include <string.h>

#define SAMPLE_BYTES_MAX 256 // of what tracepoints say; the longest that is known has 64
#define STOLEN_NS_MIN 20000 // less is the time between the scheduler's reading of its clock and perf's

// With what absence_watch.py asks for: thread, time, CPU; of samples, raw data too.
struct record {
	struct perf_event_header header;
	uint32_t pid, tid;
	uint64_t time_ns;
	uint32_t cpu, reserved;
};

struct sample {
	struct record head;
	uint32_t bytes;
	uint8_t data[SAMPLE_BYTES_MAX];
};

struct taking {
	struct nfp_absence_event *event;
	struct nfp_absence *rows;
	uint32_t count;
};

static void copy(const struct nfp_absence_event *event, uint64_t at, void *to, uint64_t bytes)
{
	uint64_t first = at % event->ring_bytes, straight = event->ring_bytes - first;
	if (straight > bytes)
		straight = bytes;
	memcpy(to, event->ring + first, straight);
	memcpy((uint8_t *)to + straight, event->ring, bytes - straight);
}

static struct nfp_absence *add_row(struct taking *taking, uint32_t kind, uint64_t out_ns, uint64_t in_ns,
                                   uint32_t cpu)
{
	struct nfp_absence *row = &taking->rows[taking->count++];
	*row = (struct nfp_absence){
	    .out_ns = out_ns, .in_ns = in_ns, .kind = kind, .from_cpu = cpu, .to_cpu = cpu};
	row->flags = taking->event->flags & NFP_ABSENCE_INCOMPLETE;
	return row;
}

// ---- the scheduler ----------------------------------------------------------------------------------------

static void switch_out(struct nfp_absence_event *event, const struct record *record)
{
	int preempted = record->header.misc & PERF_RECORD_MISC_SWITCH_OUT_PREEMPT;
	event->out_ns = record->time_ns;
	event->out_cpu = record->cpu;
	event->flags =
	    (event->flags & NFP_ABSENCE_INCOMPLETE) | (preempted ? (uint32_t)NFP_ABSENCE_PREEMPTED : 0);
	event->depth = 0;
	event->updated_ns = 0;
}

static void switch_in(struct taking *taking, const struct record *record)
{
	struct nfp_absence_event *event = taking->event;
	if (event->out_ns) { // else it is not known when it went
		struct nfp_absence *row =
		    add_row(taking, NFP_ABSENCE_SWITCH, event->out_ns, record->time_ns, event->out_cpu);
		row->to_cpu = record->cpu;
		row->flags = event->flags;
		row->code = event->next_code;
		memcpy(row->name, event->next_name, sizeof(row->name));
		event->flags = 0;
	}
	event->out_ns = event->next_code = 0;
	memset(event->next_name, 0, sizeof(event->next_name));
	event->depth = 0;
	event->updated_ns = record->time_ns;
	event->interrupted_ns = 0;
}

// ---- samples of tracepoints ---------------------------------------------------------------------------------

static int read_field(const struct sample *sample, uint32_t at, void *to, uint32_t bytes)
{
	if (at > sample->bytes || sample->bytes - at < bytes)
		return 0;
	memcpy(to, sample->data + at, bytes);
	return 1;
}

static uint32_t read_code(const struct sample *sample, const struct nfp_tracepoint *tracepoint)
{
	uint32_t code = tracepoint->code;
	(void)read_field(sample, tracepoint->code_at, &code, sizeof(code));
	return code;
}

static uint64_t read_value(const struct sample *sample, const struct nfp_tracepoint *tracepoint)
{
	uint64_t value = 0;
	(void)read_field(sample, tracepoint->value_at, &value, sizeof(value));
	return value;
}

static void read_name(const struct sample *sample, const struct nfp_tracepoint *tracepoint, char *name)
{
	uint32_t location = 0, bytes = NFP_ABSENCE_NAME_BYTES, at = tracepoint->name_at;
	memset(name, 0, NFP_ABSENCE_NAME_BYTES);
	if (read_field(sample, tracepoint->name_location_at, &location, sizeof(location))) {
		at = location & 0xffff;
		bytes = location >> 16 < bytes ? location >> 16 : bytes;
	}
	(void)read_field(sample, at, name, bytes);
	name[NFP_ABSENCE_NAME_BYTES - 1] = 0;
}

// The time since the last change belongs to the innermost interrupt.
static void close_piece(struct taking *taking, const struct record *record, uint64_t until_ns)
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

static void begin_interrupt(struct taking *taking, const struct sample *sample,
                            const struct nfp_tracepoint *tracepoint, uint64_t at_ns)
{
	struct nfp_absence_event *event = taking->event;
	close_piece(taking, &sample->head, at_ns);
	if (event->depth == NFP_ABSENCE_DEPTH) { // its ends were lost
		event->depth = 0;
		event->flags |= NFP_ABSENCE_INCOMPLETE;
	}
	struct nfp_open_interrupt *open = &event->open[event->depth++];
	open->kind = tracepoint->kind;
	open->code = read_code(sample, tracepoint);
	read_name(sample, tracepoint, open->name);
}

static void end_interrupt(struct taking *taking, const struct record *record)
{
	close_piece(taking, record, record->time_ns);
	if (taking->event->depth)
		taking->event->depth--;
}

// Wall time minus run time is steal time, where the scheduler's clock leaves it out; it may leave out interrupts, too.
static void update_run_time(struct taking *taking, const struct record *record, uint64_t ran_ns)
{
	struct nfp_absence_event *event = taking->event;
	uint64_t since_ns = event->updated_ns, known_ns = ran_ns + event->interrupted_ns;
	event->updated_ns = record->time_ns;
	event->interrupted_ns = 0;
	if (!since_ns || record->time_ns <= since_ns || known_ns < ran_ns)
		return;
	uint64_t wall_ns = record->time_ns - since_ns;
	if (wall_ns > known_ns && wall_ns - known_ns >= STOLEN_NS_MIN)
		add_row(taking, NFP_ABSENCE_STEAL, since_ns, record->time_ns, record->cpu)->stolen_ns =
		    wall_ns - known_ns;
}

static void read_sample(struct taking *taking, const struct sample *sample,
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
		event->next_code = read_code(sample, tracepoint);
		read_name(sample, tracepoint, event->next_name);
		break;
	case NFP_TRACEPOINT_RUN_TIME:
		if (read_code(sample, tracepoint) == sample->head.tid)
			update_run_time(taking, &sample->head, read_value(sample, tracepoint));
		break;
	default:
		break;
	}
}

static const struct nfp_tracepoint *find_tracepoint(const struct nfp_absence_reader *reader,
                                                    const struct sample *sample)
{
	uint16_t id = 0;
	(void)read_field(sample, 0, &id, sizeof(id));
	for (uint32_t i = 0; i < reader->tracepoint_count && i < NFP_TRACEPOINTS_MAX; i++)
		if (reader->tracepoints[i].id == id)
			return &reader->tracepoints[i];
	return NULL;
}

// ---- buffers ------------------------------------------------------------------------------------------------

static void read_record(struct nfp_absence_reader *reader, struct taking *taking, struct sample *sample)
{
	const struct record *record = &sample->head;
	uint32_t size = record->header.size, fixed = sizeof(*record) + sizeof(sample->bytes);
	if (record->header.type == PERF_RECORD_SWITCH && size == sizeof(*record)) {
		if (record->header.misc & PERF_RECORD_MISC_SWITCH_OUT)
			switch_out(taking->event, record);
		else
			switch_in(taking, record);
		return;
	}
	if (record->header.type == PERF_RECORD_SAMPLE && size >= fixed) {
		uint32_t there = size - fixed < SAMPLE_BYTES_MAX ? size - fixed : SAMPLE_BYTES_MAX;
		sample->bytes = sample->bytes < there ? sample->bytes : there;
		const struct nfp_tracepoint *tracepoint = find_tracepoint(reader, sample);
		if (tracepoint)
			read_sample(taking, sample, tracepoint);
		return;
	}
	if (record->header.type == PERF_RECORD_UNTHROTTLE)
		return;
	taking->event->updated_ns = 0;
	taking->event->depth = 0;
	taking->event->flags |= NFP_ABSENCE_INCOMPLETE;
	if (record->header.type ==
	    PERF_RECORD_THROTTLE) { // samples of one tracepoint are held back until the next tick
		reader->throttled++;
		return;
	}
	// Something was lost: what comes back need not be what went last.
	reader->lost++;
	taking->event->out_ns = 0;
	taking->event->flags = NFP_ABSENCE_INCOMPLETE;
}

static uint32_t take(struct nfp_absence_reader *reader, struct nfp_absence_event *event,
                     struct nfp_absence *rows)
{
	struct perf_event_mmap_page *page = event->page;
	struct taking taking = {event, rows, 0};
	// Pairs with the kernel's store of the head: what stands before it is written.
	uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE), at = page->data_tail;
	if (head - at > event->ring_bytes)
		return 0;
	while (head - at >= sizeof(struct perf_event_header)) {
		struct sample sample = {0};
		copy(event, at, &sample, head - at < sizeof(sample) ? head - at : sizeof(sample));
		uint32_t size = sample.head.header.size;
		if (size < sizeof(struct perf_event_header) || size > head - at)
			break;
		at += size;
		read_record(reader, &taking, &sample);
	}
	// Pairs with the kernel's load of the tail: what stands before it may be written over.
	__atomic_store_n(&page->data_tail, head, __ATOMIC_RELEASE);
	return taking.count;
}

uint32_t nfp_absences_take(struct nfp_absence_reader *reader, struct nfp_absence *rows, uint32_t room)
{
	uint32_t taken = 0;
	for (; reader->next < reader->count; reader->next++) {
		struct nfp_absence_event *event = &reader->events[reader->next];
		if (!event->page)
			continue;
		// A record of the scheduler makes at most one row; a sample is longer, and makes at most two.
		if (room - taken < 2 * event->ring_bytes / sizeof(struct record))
			break;
		uint32_t found = take(reader, event, rows + taken);
		for (uint32_t i = 0; i < found; i++)
			rows[taken + i].event = reader->next;
		taken += found;
	}
	return taken;
}
