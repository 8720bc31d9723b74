// SPDX-License-Identifier: Apache-2.0
// The stop of the one chosen thread: save all its state, map two regions, write the bootstrap, run
// nfp_boot_start, restore all its state. dlopen does not happen here (see bootstrap.c).
#include "inject.h"
#include "address_space.h"
#include "patch_process.h"
#include "ptrace.h"
#include "safe_place.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CODE_BYTES 8192
#define DATA_BYTES (64 << 10) // struct nfp_boot, then the stack of nfp_boot_start
#define CALL_PATIENCE_NS 10000000000ull

struct saved {
	struct nfp_registers registers;
	uint8_t vector_state[NFP_VECTOR_STATE_BYTES];
	size_t vector_bytes;
	uint64_t signal_mask;
	int at_entry; // stopped at the entry of a system call, not inside one
};

static int fail(struct nfp_inject *inject, int error, const char *what)
{
	snprintf(inject->message, sizeof(inject->message), "%s: %s", what, strerror(-error));
	return error;
}

static int save(struct nfp_seized *thread, struct saved *saved)
{
	struct iovec area = {saved->vector_state, sizeof(saved->vector_state)};
	saved->registers = thread->registers;
	if (ptrace(PTRACE_GETREGSET, thread->tid, NFP_VECTOR_STATE, &area) != 0)
		return -errno;
	saved->vector_bytes = area.iov_len;
	if (ptrace(PTRACE_GETSIGMASK, thread->tid, sizeof(saved->signal_mask), &saved->signal_mask) != 0)
		return -errno;
	// Not SIGTRAP: the bootstrap returns to a breakpoint, and where that is blocked the kernel takes the handler
	// away.
	uint64_t others = ~(1ull << (SIGTRAP - 1));
	return ptrace(PTRACE_SETSIGMASK, thread->tid, sizeof(others), &others) == 0 ? 0 : -errno;
}

static int restore(struct nfp_seized *thread, struct saved *saved)
{
	struct iovec area = {saved->vector_state, saved->vector_bytes};
	struct nfp_registers registers = saved->registers;
	if (saved->at_entry) // the system call was skipped: it is made now
		nfp_call_again(&registers);
	int failed = ptrace(PTRACE_SETREGSET, thread->tid, NFP_VECTOR_STATE, &area) != 0;
	failed |= nfp_registers_write(thread->tid, &registers) != 0;
	failed |=
	    ptrace(PTRACE_SETSIGMASK, thread->tid, sizeof(saved->signal_mask), &saved->signal_mask) != 0;
	thread->registers = registers;
	return failed ? -errno : 0;
}

// Makes the thread execute one system call at `syscall_address`.
static int64_t remote_call(struct nfp_inject *inject, struct nfp_seized *thread, struct saved *saved,
                           uint64_t number, const uint64_t arguments[6])
{
	struct nfp_registers registers = saved->registers;
	nfp_call_make(&registers, inject->syscall_address, number, arguments);
	return nfp_step_over_call(thread, &registers, CALL_PATIENCE_NS);
}

static int is_error(int64_t result)
{
	return result < 0 && result > -4096;
}

// Maps the two regions and writes the bootstrap before its region becomes executable.
static int make_regions(struct nfp_inject *inject, struct nfp_boot *boot, struct nfp_seized *thread,
                        struct saved *saved, int memory)
{
	uint64_t map[6] = {
	    0, CODE_BYTES + DATA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, (uint64_t)-1, 0};
	int64_t address = remote_call(inject, thread, saved, SYS_mmap, map);
	if (is_error(address))
		return fail(inject, (int)address, "mmap in the target");
	inject->code_address = (uint64_t)address;
	inject->data_address = (uint64_t)address + CODE_BYTES;
	boot->regions[0] = inject->code_address;
	boot->regions[1] = CODE_BYTES;
	boot->regions[2] = inject->data_address;
	boot->regions[3] = DATA_BYTES;
	uint8_t code[CODE_BYTES];
	// What follows the bootstrap is where nfp_boot_start returns to.
	for (uint32_t at = 0; at < CODE_BYTES; at += NFP_TRAP_BYTES)
		memcpy(code + at, NFP_TRAP, NFP_TRAP_BYTES);
	memcpy(code, inject->bootstrap, inject->bootstrap_bytes);
	int error = nfp_memory_write(memory, inject->code_address, code, sizeof(code));
	if (!error)
		error = nfp_memory_write(memory, inject->data_address, boot, sizeof(*boot));
	if (error)
		return fail(inject, error, "writing the bootstrap");
	uint64_t protect[6] = {inject->code_address, CODE_BYTES, PROT_READ | PROT_EXEC, 0, 0, 0};
	int64_t result = remote_call(inject, thread, saved, SYS_mprotect, protect);
	return result ? fail(inject, (int)result, "the bootstrap cannot be made executable in the target")
	              : 0;
}

static void unmake_regions(struct nfp_inject *inject, struct nfp_seized *thread, struct saved *saved)
{
	uint64_t unmap[6] = {inject->code_address, CODE_BYTES + DATA_BYTES, 0, 0, 0, 0};
	if (inject->code_address)
		remote_call(inject, thread, saved, SYS_munmap, unmap);
	inject->code_address = 0;
}

// Calls nfp_boot_start on a stack of its own and waits for the breakpoint it returns to.
static int run_bootstrap(struct nfp_inject *inject, struct nfp_boot *boot, struct nfp_seized *thread,
                         struct saved *saved, int memory)
{
	struct nfp_registers registers = saved->registers;
	uint64_t return_to = inject->code_address + inject->bootstrap_bytes;
	return_to += (NFP_TRAP_BYTES - return_to % NFP_TRAP_BYTES) % NFP_TRAP_BYTES;
	int error = nfp_function_call(&registers, memory, inject->code_address, inject->data_address,
	                              inject->data_address + DATA_BYTES, return_to);
	if (error)
		return fail(inject, error, "writing the bootstrap's stack");
	error = nfp_registers_write(thread->tid, &registers);
	if (error || ptrace(PTRACE_CONT, thread->tid, 0, 0) != 0)
		return fail(inject, error ? error : -errno, "starting the bootstrap");
	uint64_t deadline_ns = nfp_now_ns() + CALL_PATIENCE_NS;
	for (;;) {
		int status;
		error = nfp_wait_stop(thread, deadline_ns, &status);
		if (error)
			return fail(inject, error, "the bootstrap did not return");
		error = nfp_registers_read(thread->tid, &registers);
		if (error)
			return fail(inject, error, "reading registers");
		if (nfp_trap_address(&registers) == return_to)
			break;
		if (status >> 16 == 0)
			return fail(inject, -EFAULT, "the bootstrap was stopped by a signal");
		ptrace(PTRACE_CONT, thread->tid, 0, 0);
	}
	int read = nfp_memory_read(memory, inject->data_address + offsetof(struct nfp_boot, created),
	                           &boot->created, sizeof(boot->created));
	if (read)
		return fail(inject, read, "reading the bootstrap's answer");
	return boot->created ? fail(inject, -boot->created, "pthread_create in the target") : 0;
}

static int inject_stopped(struct nfp_inject *inject, struct nfp_boot *boot, struct nfp_seized *thread,
                          struct saved *saved, int memory)
{
	inject->system_call = nfp_call_number(&thread->registers);
	int error = save(thread, saved);
	if (error)
		return fail(inject, error, "saving the thread's state");
	error = make_regions(inject, boot, thread, saved, memory);
	if (!error)
		error = run_bootstrap(inject, boot, thread, saved, memory);
	if (error)
		unmake_regions(inject, thread, saved);
	int restored = restore(thread, saved);
	return error ? error : restored ? fail(inject, restored, "restoring the thread's state") : 0;
}

static int come_to_safe_place(struct nfp_inject *inject, struct nfp_seized *thread, struct saved *saved,
                              uint64_t *since_ns)
{
	struct nfp_safe_place place = {.pid = inject->pid, .tids = inject->tids, .count = inject->tid_count};
	int error = nfp_safe_place_find(&place, inject->patience_ns);
	inject->tried = place.tried;
	inject->tid = error ? 0 : place.thread.tid;
	*thread = place.thread;
	saved->at_entry = place.at_entry;
	*since_ns = place.since_ns;
	if (error == -EAGAIN)
		snprintf(inject->message, sizeof(inject->message),
		         "none made a harmless system call in time");
	else if (error)
		fail(inject, error,
		     error == -ESTALE ? "the process has started another program" : "PTRACE_SEIZE");
	return error;
}

static int inject_here(struct nfp_inject *inject, struct nfp_boot *boot)
{
	struct nfp_seized thread;
	struct saved saved = {.at_entry = 0};
	struct nfp_priority before;
	uint64_t since_ns;
	nfp_priority_boost(&before);
	int error = come_to_safe_place(inject, &thread, &saved, &since_ns);
	if (!error) {
		if (!nfp_runs_in(inject->tid, inject->memory_fd))
			error = fail(inject, -ESTALE, "the process has started another program");
		if (!error)
			error = inject_stopped(inject, boot, &thread, &saved, inject->memory_fd);
		nfp_release(&thread);
		inject->stopped_ns = nfp_now_ns() - since_ns;
	}
	nfp_priority_restore(&before);
	return error;
}

struct work {
	struct nfp_inject inject;
	struct nfp_boot boot;
};

static int do_work(void *shared)
{
	struct work *work = shared;
	return inject_here(&work->inject, &work->boot);
}

int nfp_inject(struct nfp_inject *inject, struct nfp_boot *boot)
{
	if (inject->bootstrap_bytes >= CODE_BYTES)
		return fail(inject, -E2BIG, "the bootstrap");
	struct work work = {*inject, *boot};
	int error = nfp_patch_process(do_work, &work);
	*inject = work.inject;
	*boot = work.boot;
	return error;
}
