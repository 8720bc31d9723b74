// SPDX-License-Identifier: Apache-2.0
// The helper thread: our only thread in the target, there while a monitor is attached. It makes or takes up
// the session's memory, carries out the monitor's commands, and watches the monitor: when its lock on the
// session's file is gone, the gates are closed and the thread ends. It never runs on a dataplane CPU if
// there is another, blocks all signals, and is the only place where libc is called.
#define _GNU_SOURCE
#include "arena.h"
#include "abi/boot.h"
#include "ending.h"
#include "jit.h"
#include "late.h"
#include "library.h"
#include "queue.h"
#include "ring_space.h"
#include "arch/arch.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FIXED_BYTES NFP_ARENA_OFFSET // header and tables: what the target maps writable
#define STACK_BYTES (256 << 10)
#define GO_PATIENCE_S 8 // after the session is there, until the monitor has looked at it
#define WATCH_NS 100000000           // how often the monitor's lock is looked at
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

__attribute__((visibility("default"))) void *nfp_helper_main(struct nfp_boot *boot);

static void leave_dataplane(const struct nfp_boot *boot)
{
	struct sched_param normal = {0};
	uint64_t trap =
	    1ull << (SIGTRAP - 1); // the others are blocked since the thread was made (native/core/inject.c)
	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &trap, NULL, sizeof(trap));
	syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &normal); // musl's function does nothing
	syscall(SYS_sched_setaffinity, 0, sizeof(boot->cpus), boot->cpus);
	prctl(PR_SET_NAME, "nfprobe");
}

// Whether the file descriptor still names the mapped session: a target may close descriptors that it does not
// know.
static int descriptor_is_session(void)
{
	struct stat by_descriptor;
	if (fstat(nfp_library.session_fd, &by_descriptor) != 0)
		return 0;
	return (uint64_t)by_descriptor.st_size == nfp_library.header->total_bytes &&
	       fcntl(nfp_library.session_fd, F_GET_SEALS) > 0;
}

// Whether the session that is mapped can be taken up again: same process, same ring size.
static int session_is_usable(const struct nfp_boot *boot)
{
	struct nfp_session_header *header = nfp_library.header;
	if (!header || nfp_library.pid != getpid() || header->ring_bytes != boot->ring_bytes)
		return 0;
	return descriptor_is_session();
}

// Where nothing of a program or its libraries usually lies: what is free near these is left for trampolines. A wish
// only; the kernel takes another place where something is there already.
#define FAR_FROM_CODE ((void *)0x200000000000)

static const char *make_threads(struct nfp_thread **ret)
{
	size_t bytes = sizeof(struct nfp_thread) * NFP_THREAD_COUNT;
	void *blocks = mmap(FAR_FROM_CODE, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (blocks == MAP_FAILED)
		return "no memory for the thread blocks";
	// A forked child reads zeros: its gates are closed, it never writes into its parent's rings.
	if (madvise(blocks, bytes, MADV_WIPEONFORK) != 0) {
		munmap(blocks, bytes);
		return "the kernel has no MADV_WIPEONFORK (Linux 4.14)";
	}
	*ret = blocks;
	return NULL;
}

static void *make_late(void) // pages that are never touched cost nothing
{
	return mmap(FAR_FROM_CODE, sizeof(struct nfp_late) * NFP_THREAD_COUNT, PROT_READ | PROT_WRITE,
	            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// A table of so many numbers at least; zeros. An earlier one stays mapped: a thread may be inside a probe.
static int make_table(uint64_t wanted, uint32_t **table, uint64_t *count)
{
	if (*count)
		madvise(*table, *count * sizeof(uint32_t), MADV_DONTNEED);
	if (wanted <= *count)
		return 0;
	void *entries = mmap(FAR_FROM_CODE, wanted * sizeof(uint32_t), PROT_READ | PROT_WRITE,
	                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (entries == MAP_FAILED)
		return -ENOMEM;
	*table = entries;
	// Partners: count_entries (owner.c) and entry_of (handoff.c), which may run still for the session before.
	__atomic_store_n(count, wanted, __ATOMIC_RELEASE);
	return 0;
}

// The tables of who has received which buffer (owner.c), and of those that were handed over (handoff.c), for as many as the
// header says.
static int make_owners(void)
{
	uint64_t wanted = nfp_owners_needed(nfp_library.header->buffers_bytes);
	int result = make_table(wanted, &nfp_library.owners, &nfp_library.owners_count);
	return result ? result : make_table(wanted, &nfp_library.pins, &nfp_library.pins_count);
}

// In a forked child the blocks that its thread may use have become zeros.
static void revive_former(void)
{
	for (int f = 0; f < NFP_FORMER_COUNT && nfp_library.former[f]; f++)
		for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
			struct nfp_thread *thread = &nfp_library.former[f][i];
			thread->slow = nfp_null_thread.slow;
			thread->receive_exit = nfp_null_thread.receive_exit;
			thread->packets_entry = nfp_null_thread.packets_entry;
			thread->packets_exit = nfp_null_thread.packets_exit;
			thread->counted_entry = nfp_null_thread.counted_entry;
			thread->counted_exit = nfp_null_thread.counted_exit;
		}
}

// The blocks of the session before, or of the process that this one was forked from, stay readable for ever: a
// thread may be inside a probe that uses them.
static const char *retire_threads(void)
{
	int is_forked = nfp_library.pid != getpid(), slot = 0;
	while (slot < NFP_FORMER_COUNT && nfp_library.former[slot])
		slot++;
	if (slot == NFP_FORMER_COUNT)
		return "too many sessions came before, of other ring sizes or in processes that led to this";
	nfp_library.former[slot] = nfp_library.threads;
	if (is_forked) {
		nfp_follow_gate();
		revive_former();
		if (descriptor_is_session())
			close(nfp_library.session_fd); // else it looks like a session of this process
	}
	return NULL;
}

static const char *make_session(const struct nfp_boot *boot)
{
	const char *failure = nfp_library.threads ? retire_threads() : NULL;
	if (failure)
		return failure;
	struct nfp_thread *threads;
	uint64_t total = NFP_RING_OFFSET + NFP_THREAD_COUNT * boot->ring_bytes;
	int fd = memfd_create("nfprobe-session", MFD_CLOEXEC | MFD_ALLOW_SEALING | 0x10);
	if (fd < 0)
		fd = memfd_create("nfprobe-session", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return "memfd_create is refused for the session";
	if (fchmod(fd, 0600) != 0 || ftruncate(fd, (off_t)total) != 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
		return close(fd), "the session's memory file cannot be sized and sealed";
	void *fixed = mmap(NULL, FIXED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fixed == MAP_FAILED)
		return close(fd), "the session's memory cannot be mapped";
	failure = make_threads(&threads);
	void *late = failure ? NULL : make_late();
	if (late == MAP_FAILED)
		failure = "no memory for what the threads keep of packets";
	if (failure)
		return munmap(fixed, FIXED_BYTES), close(fd), failure;
	struct nfp_session_header *header = fixed;
	header->magic = NFP_SESSION_MAGIC;
	header->version = NFP_SESSION_VERSION;
	header->total_bytes = total;
	header->ring_bytes = boot->ring_bytes;
	header->ring_stride = boot->ring_bytes;
	header->target_pid = (uint32_t)getpid();
	header->helper_address = (uint64_t)(uintptr_t)nfp_helper_main;
	header->tls_offset = (uint32_t)nfp_library.word_offset;
	header->kept_address = (uint64_t)(uintptr_t)&threads[0].kept;
	memset(header->free_threads, 0xff, sizeof(header->free_threads));
	memset(nfp_library.rings, 0, sizeof(nfp_library.rings));
	nfp_library.header = header;
	nfp_library.late = late; // an earlier one stays mapped: a thread may be inside a probe
	nfp_library.table = (void *)((uint8_t *)fixed + NFP_THREAD_TABLE_OFFSET);
	nfp_library.programs = (void *)((uint8_t *)fixed + NFP_PROGRAM_OFFSET);
	nfp_library.session_fd = fd;
	nfp_library.pid = getpid();
	nfp_library.gate = 0;
	threads[0].kept = 1;
	// Partner: nfp_is_forked. From here on threads of a forked child use the rest.
	__atomic_store_n(&nfp_library.threads, threads, __ATOMIC_RELEASE);
	return NULL;
}

// Maps some rings and touches their pages, so that the first records of a dataplane thread cost no page
// faults. Failure is no harm: the thread maps its ring itself.
static void prepare_rings(uint64_t count)
{
	if (count && count <= NFP_THREAD_COUNT)
		madvise(nfp_library.late, count * sizeof(struct nfp_late), MADV_POPULATE_WRITE);
	for (uint32_t index = 0; index < count && index < NFP_THREAD_COUNT; index++)
		if (!nfp_library.rings[index] && nfp_ring_map(index) == 0)
			for (int lap = 0; lap < 2; lap++)
				madvise((void *)(nfp_library.rings[index] + lap * NFP_RING_LAPS_APART),
				        nfp_library.header->ring_bytes, MADV_POPULATE_WRITE);
}

// A session begins with counters at zero and the monitor reading from where each thread stands. Gates are
// closed here, so nothing else changes these.
static void begin_session(void)
{
	struct nfp_session_header *header = nfp_library.header;
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
		struct nfp_thread_shared *shared = &nfp_library.table[i];
		if (shared->state == NFP_THREAD_FREE && shared->position == 0)
			continue;
		struct nfp_thread *thread = &nfp_library.threads[i];
		nfp_queue_forget(thread);
		memset(thread->lost_pending, 0, sizeof(thread->lost_pending));
		memset(shared->lost, 0, sizeof(shared->lost));
		memset(&shared->empty_polls, 0, 8 * sizeof(uint64_t)); // up to dropped_packets
		shared->handed_over_packets = shared->taken_over_packets = shared->punted_packets = 0;
		shared->timed_calls = shared->timed_ticks = 0;
		memset(&shared->identified_packets, 0, 7 * sizeof(uint64_t)); // up to checked_calls
		nfp_late_begin(thread, i);
		shared->position = nfp_ring_space_position(thread, thread->cursor);
		shared->tail = shared->position;
	}
	memset(header->unregistered, 0, sizeof(header->unregistered));
	header->epoch++;
	header->helper_tid = (uint32_t)syscall(SYS_gettid);
	header->reply = header->request;
	__atomic_store_n(&header->state, NFP_STATE_READY, __ATOMIC_RELEASE);
}

static void set_former_gates(uint32_t gate)
{
	for (int f = 0; f < NFP_FORMER_COUNT && nfp_library.former[f]; f++)
		for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
			nfp_library.former[f][i].limit = 0; // always the slow path
			nfp_library.former[f][i].room = 0;
			__atomic_store_n(&nfp_library.former[f][i].gate, gate, __ATOMIC_RELEASE);
		}
}

static void set_gates(uint32_t gate)
{
	__atomic_store_n(&nfp_library.gate, gate, __ATOMIC_SEQ_CST);
	nfp_claiming_thread.gate = gate;
	nfp_follow_gate();
	set_former_gates(gate);
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++)
		if (nfp_library.threads[i].shared)
			__atomic_store_n(&nfp_library.threads[i].gate,
			                 gate ? nfp_gate_of(&nfp_library.threads[i]) : 0, __ATOMIC_RELEASE);
	__atomic_store_n(&nfp_library.header->state, gate ? NFP_STATE_ARMED : NFP_STATE_READY,
	                 __ATOMIC_RELEASE);
}

static int carry_out(struct nfp_session_header *header)
{
	switch (header->command) {
	case NFP_COMMAND_MAP_ARENA:
		return nfp_arena_map(header->argument[0], header->argument[1], header->argument[2]);
	case NFP_COMMAND_REGISTER_FRAMES:
		return nfp_frames_register((void *)header->argument[0]);
	case NFP_COMMAND_MAP_FILE:
		return nfp_arena_map_file(header->message, header->argument[0], header->argument[1]);
	case NFP_COMMAND_REGISTER_CODE:
		return nfp_jit_register(header->argument[0], header->argument[1]);
	case NFP_COMMAND_OPEN: {
		int result = header->buffers_bytes ? make_owners() : 0;
		nfp_turns_go_on();
		if (result == 0)
			set_gates((uint32_t)header->argument[0]);
		return result;
	}
	case NFP_COMMAND_END_TURNS:
		nfp_turns_end();
		return 0;
	case NFP_COMMAND_CLOSE:
	case NFP_COMMAND_LEAVE:
		set_gates(0);
		return 0;
	case NFP_COMMAND_SYNC_CORE:
		return (int)nfp_sync(header->argument[0]);
	case NFP_COMMAND_COUNTERS:
		return (int)nfp_counters_begin();
	case NFP_COMMAND_COUNT:
		return (int)nfp_counters_set(header->argument[0], header->argument[1], header->argument[2],
		                             header->argument[3]);
	case NFP_COMMAND_CALIBRATE:
		return (int)nfp_calibrate(header->argument[0], header->argument[1]);
	case NFP_COMMAND_CALIBRATE_COUNTERS:
		return (int)nfp_calibrate_counters(header->argument[0], header->argument[1]);
	default:
		return -ENOSYS;
	}
}

static int monitor_is_there(void)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	return nfp_syscall3(SYS_fcntl, nfp_library.session_fd, F_OFD_GETLK, (long)&lock) == 0 &&
	       lock.l_type != F_UNLCK;
}

// Raw, as all that this thread executes while it serves: a breakpoint may stand in a function of the C library
// (native/core/live.c).
static void futex(uint32_t *word, int operation, uint32_t value, const struct timespec *patience)
{
	nfp_syscall6(SYS_futex, (long)word, operation, value, (long)patience, 0, 0);
}

static void serve(struct nfp_session_header *header)
{
	struct timespec patience = {0, WATCH_NS};
	for (;;) {
		uint32_t request =
		    __atomic_load_n(&header->request, __ATOMIC_ACQUIRE); // partner: Session.command
		if (request == header->reply) {
			futex(&header->request, FUTEX_WAIT, request, &patience);
			if (!monitor_is_there())
				return;
			continue;
		}
		int leave = header->command == NFP_COMMAND_LEAVE;
		header->result = carry_out(header);
		if (leave)
			return;
		__atomic_store_n(&header->reply, request, __ATOMIC_RELEASE); // partner: Session.command
		futex(&header->reply, FUTEX_WAKE, 1, NULL);
	}
}

static void fail(struct nfp_boot *boot, const char *text)
{
	snprintf(boot->message, sizeof(boot->message), "%s", text);
	__atomic_store_n(&boot->stage, NFP_BOOT_FAILED, __ATOMIC_RELEASE);
}

// By the clock: on a machine without a free processor a short sleep takes many times its length.
static int wait_for_go(struct nfp_boot *boot)
{
	struct timespec pause = {0, 200000}, start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		if (__atomic_load_n(&boot->stage, __ATOMIC_ACQUIRE) == NFP_BOOT_GO)
			return 1;
		nanosleep(&pause, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - start.tv_sec <= GO_PATIENCE_S);
	return 0;
}

// The thread that has loaded the library has no thread word (word_musl.c): a thread that is made after that
// has one, and goes on from here.
static void *begin_again(struct nfp_boot *boot)
{
	uint64_t attributes[16], thread; // pthread_attr_t is 56 bytes in both C libraries
	if (boot->entry)
		return fail(boot, "the C library gives new threads no room for the library's storage"), NULL;
	boot->entry = (uint64_t)(uintptr_t)nfp_helper_main;
	((int (*)(void *))boot->pthread_attr_init)(attributes);
	((int (*)(void *, int))boot->pthread_attr_setdetachstate)(attributes, PTHREAD_CREATE_DETACHED);
	((int (*)(void *, size_t))boot->pthread_attr_setstacksize)(attributes, STACK_BYTES);
	if (((int (*)(uint64_t *, void *, void *, void *))boot->pthread_create)(
	        &thread, attributes, (void *)nfp_helper_main, boot) != 0)
		fail(boot, "pthread_create in the target");
	return NULL;
}

// Entered by a jump from the bootstrap: returns to the thread library, the thread ends.
void *nfp_helper_main(struct nfp_boot *boot)
{
	leave_dataplane(boot);
	nfp_jit_name_library();
	if (!nfp_library.word_offset)
		nfp_library.word_offset = nfp_find_word();
	if (!nfp_library.word_offset)
		return begin_again(boot);
	if (!session_is_usable(boot)) {
		const char *failure = make_session(boot);
		if (failure)
			return fail(boot, failure), NULL;
	}
	struct nfp_session_header *header = nfp_library.header;
	prepare_rings(boot->prepared_rings);
	begin_session();
	boot->session_fd = nfp_library.session_fd;
	uint64_t regions[4];
	memcpy(regions, boot->regions, sizeof(regions));
	__atomic_store_n(&boot->stage, NFP_BOOT_SESSION_READY, __ATOMIC_RELEASE);
	int go = wait_for_go(boot);
	munmap((void *)regions[0], regions[1]);
	munmap((void *)regions[2], regions[3]);
	if (go)
		serve(header);
	set_gates(0);
	nfp_counters_end();
	// The last store: a monitor that waits for the helper to be gone reads this and then the thread list.
	__atomic_store_n(&header->state, NFP_STATE_SILENT, __ATOMIC_RELEASE);
	return NULL;
}
