// SPDX-License-Identifier: Apache-2.0
// Absences: when a thread did not execute its own code, and what the CPU did instead, out of perf buffers. A thread has one
// buffer with the scheduler's records (off a CPU, on a CPU), and others with what can be more than anybody reads in time:
// page faults, and of each CPU what tracepoints say while this thread is the current one: begin and end of interrupts, each
// update of its run time, what runs next and where it sleeps. So a flood of interrupts hides no preemption. The kernel
// writes the buffers.
#ifndef NFPROBE_ABSENCES_H
#define NFPROBE_ABSENCES_H
#include <stdint.h>

// cdef begin
enum nfp_absence_flag {
	NFP_ABSENCE_PREEMPTED = 1, // it could have run on: so in every interrupt
	NFP_ABSENCE_INCOMPLETE = 2, // records were lost before this row
	NFP_ABSENCE_HELD = 4, // another thread of the target kept it from running: told by holds, set later
	NFP_ABSENCE_MAJOR = 8, // of a page fault: a file was read
	NFP_ABSENCE_WOKEN_BY_INTERRUPT = 16, // `waker` is the task that was interrupted
	NFP_ABSENCE_STOPPED = 32, // by a signal or a debugger
};

enum nfp_absence_kind {
	NFP_ABSENCE_SWITCH, // the scheduler ran another task
	NFP_ABSENCE_VECTOR, // an interrupt of the processor's own: timer, another CPU's call
	NFP_ABSENCE_IRQ, // a device's interrupt
	NFP_ABSENCE_SOFTIRQ,
	NFP_ABSENCE_NMI,
	NFP_ABSENCE_STEAL, // somewhere in this interval the hypervisor ran something else, for stolen_ns
	NFP_ABSENCE_FAULT, // the kernel served a page fault of the thread
	NFP_ABSENCE_CALL, // the thread slept in a system call
	NFP_ABSENCE_WAIT, // the thread slept in one that waits for another thread: futex
	NFP_ABSENCE_FIRMWARE, // `code` system management interrupts were somewhere in this interval; nothing here makes it
};

#define NFP_ABSENCE_DEPTH 4 // NMI in IRQ in softirq, and one to spare
#define NFP_ABSENCE_NAME_BYTES 16 // TASK_COMM_LEN
#define NFP_ABSENCE_WAKER_BYTES 24
#define NFP_ABSENCE_TEXT_BYTES 48
#define NFP_ABSENCE_FRAMES 24 // of the kernel, where a thread sleeps

struct nfp_absence {
	uint64_t out_ns;
	uint64_t in_ns;
	uint64_t
	    part_ns; // of NFP_ABSENCE_STEAL what was stolen; of a switch how long the named task ran, if known
	uint64_t address; // of a page fault; of a system call its first argument
	uint64_t woken_ns; // when `waker` woke it
	uint32_t event; // index of the thread's event
	uint32_t flags; // enum nfp_absence_flag
	uint32_t from_cpu;
	uint32_t to_cpu;
	uint32_t kind; // enum nfp_absence_kind
	uint32_t
	    code; // number of the interrupt; of a switch, the thread ID of the task that ran longest or first; 0: unknown
	char name
	    [NFP_ABSENCE_NAME_BYTES]; // of that task, a device's interrupt or a system call; padded with zeros
	char waker_name[NFP_ABSENCE_WAKER_BYTES]; // of the task or interrupt that woke it
	uint32_t waker; // thread ID of what woke that task, or, if it slept, this thread; 0: unknown
	uint32_t sleep; // index + 1 in `sleeps` of the reader, until the next rows are taken; 0: none
	char text[NFP_ABSENCE_TEXT_BYTES]; // more about it: a file, a control group; UTF-8
};

// Where a thread was in the kernel when it went to sleep.
struct nfp_sleep {
	uint64_t argument; // the first one of its system call
	uint32_t count;
	uint32_t reserved;
	uint64_t frames[NFP_ABSENCE_FRAMES]; // addresses, the innermost first
};

// What a tracepoint says, by the offsets in its format file (Documentation/trace/events.rst).
enum nfp_tracepoint_role {
	NFP_TRACEPOINT_UNKNOWN,
	NFP_TRACEPOINT_BEGIN, // of an interrupt
	NFP_TRACEPOINT_END,
	NFP_TRACEPOINT_DURATION, // hit at an interrupt's end; `value` is how many ns it took
	NFP_TRACEPOINT_SWITCH, // `code` is the next task, `name` its name; with frames: where the thread goes to sleep
	NFP_TRACEPOINT_RUN_TIME, // `code` is the task, `value` the ns that it ran since the last time
};

#define NFP_TRACEPOINTS_MAX 32
#define NFP_TRACEPOINT_NO_FIELD 0xffff

struct nfp_tracepoint {
	uint32_t id; // perf_event_attr.config
	uint16_t role; // enum nfp_tracepoint_role
	uint16_t kind; // enum nfp_absence_kind
	uint32_t code; // where there is no field for it
	uint16_t code_at; // offset of 4 bytes, or NFP_TRACEPOINT_NO_FIELD; so the others
	uint16_t value_at; // 8 bytes
	uint16_t name_at; // NFP_ABSENCE_NAME_BYTES
	uint16_t name_location_at; // 4 bytes: offset and length << 16 of the name (__data_loc)
};

enum nfp_fault_event { NFP_FAULT_BEGIN, NFP_FAULT_MINOR, NFP_FAULT_MAJOR, NFP_FAULT_EVENTS };

struct nfp_open_interrupt {
	uint32_t kind, code;
	char name[NFP_ABSENCE_NAME_BYTES];
};

#define NFP_ABSENCE_BUFFERS 6

struct nfp_absence_buffer {
	void *page; // struct perf_event_mmap_page; NULL: there is none
	const uint8_t *ring; // behind it
	uint64_t ring_bytes;
};

struct nfp_absence_event {
	// The first has the scheduler's records; without it there is no event at this place.
	struct nfp_absence_buffer buffers[NFP_ABSENCE_BUFFERS];
	uint64_t read_ns; // of the last record that was read
	uint64_t out_ns; // since when its thread is away; 0: it is not, or that is not known
	uint32_t out_cpu;
	uint32_t flags; // of the row that is under way: enum nfp_absence_flag
	uint64_t updated_ns; // when its run time was updated last; 0: it has been away since
	uint64_t interrupted_ns; // spent in interrupts since then
	uint64_t piece_ns; // since when the innermost of the interrupts below runs
	uint32_t depth;
	uint32_t next_code; // the task that runs next, and its name
	char next_name[NFP_ABSENCE_NAME_BYTES];
	uint32_t last_cpu;
	uint32_t
	    global_tid; // its thread ID in the kernel's own namespace, which tracepoints tell; 0: unknown
	uint32_t faults; // minor page faults that were read, ever
	uint32_t sleeps; // ever
	uint32_t network_softirqs; // ever
	uint64_t fault_ids[NFP_FAULT_EVENTS]; // IDs of its events for page faults; 0: none
	uint64_t
	    fault_ns; // since when its page fault has been served without an interruption; 0: it has none
	uint64_t fault_address;
	struct nfp_sleep sleep; // where it is going to sleep
	struct nfp_open_interrupt open[NFP_ABSENCE_DEPTH];
};

struct nfp_absence_reader {
	struct nfp_absence_event *events;
	uint32_t count;
	uint32_t next; // event that is taken next
	uint64_t lost; // records that the kernel says it lost, or that make no sense
	uint64_t throttled; // times that the kernel held samples back until the next tick
	// Updates of run times that can be so only where these contain interrupts, and other ones.
	uint64_t with_interrupts, without_interrupts;
	struct nfp_sleep *sleeps; // of the rows that were taken last
	uint32_t sleep_room, sleep_count;
	uint32_t tracepoint_count;
	struct nfp_tracepoint tracepoints[NFP_TRACEPOINTS_MAX];
};

// Takes rows of the events from `next` on, those of one thread in order and, but for NFP_ABSENCE_STEAL, without overlap, as
// long as there is room for all that a buffer can hold; `next` is then the event that comes next, or `count`. Of nested
// interrupts each has the time in which it was the innermost. Returns the number of rows.
uint32_t nfp_absences_take(struct nfp_absence_reader *reader, struct nfp_absence *rows, uint32_t room);
// cdef end
#endif
