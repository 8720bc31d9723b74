// SPDX-License-Identifier: Apache-2.0
// The child side of a launch calls only what is safe after a fork of a program with threads. The release is
// done in the patch process: a monitor that is killed meanwhile leaves a program that runs or one that is killed.
#define _GNU_SOURCE
#include "launch.h"
#include "address_space.h"
#include "forward.h"
#include "patch_process.h"
#include "ptrace.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_NS 10000000000ull
#define ALL_SIGNALS (~(uint64_t)0)
_Static_assert(sizeof(struct nfp_registers) <= sizeof(((struct nfp_launch *)0)->registers), "registers");

// ---- start -------------------------------------------------------------------------------------------------

static void become_program(const struct nfp_launch *launch, const sigset_t *mask, pid_t monitor, int report)
{
	signal(SIGPIPE, SIG_DFL); // these two are ignored by Python
	signal(SIGXFSZ, SIG_DFL);
	sigprocmask(SIG_SETMASK, mask, NULL);
	int error = 0;
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
		error = errno;
	if (getppid() != monitor) // it died before it could be watched
		_exit(1);
	if (!error) {
		execve(launch->path, launch->arguments, launch->environment);
		error = errno;
	}
	if (write(report, &error, sizeof(error)) < 0)
		_exit(2);
	_exit(1);
}

// Waits for the next stop. Returns 0 with its status, or -ECHILD when the program has ended.
static int wait_stop(struct nfp_launch *launch, int *status)
{
	while (waitpid(launch->pid, status, __WALL) < 0)
		if (errno != EINTR)
			return -ECHILD;
	if (WIFSTOPPED(*status))
		return 0;
	launch->ended = 1;
	launch->status = *status;
	return -ECHILD;
}

static int is_exec(int status)
{
	return status >> 8 == SIGTRAP || status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8);
}

static int wait_exec(struct nfp_launch *launch)
{
	int status;
	for (;;) {
		int error = wait_stop(launch, &status);
		if (error)
			return error;
		if (is_exec(status))
			break;
		ptrace(PTRACE_CONT, launch->pid, 0, (long)WSTOPSIG(status));
	}
	long options = PTRACE_O_EXITKILL | PTRACE_O_TRACEEXEC;
	return ptrace(PTRACE_SETOPTIONS, launch->pid, 0, options) == 0 ? 0 : -errno;
}

int nfp_launch_start(struct nfp_launch *launch)
{
	int report[2], error = 0;
	sigset_t all, before;
	pid_t monitor = getpid();
	if (pipe2(report, O_CLOEXEC) != 0)
		return -errno;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before); // no signal falls between the fork and its forwarding
	launch->pid = fork();
	if (launch->pid == 0)
		become_program(launch, &before, monitor, report[1]);
	int result = launch->pid < 0 ? -errno : 0;
	if (!result)
		nfp_forward_begin(launch->pid);
	sigprocmask(SIG_SETMASK, &before, NULL);
	close(report[1]);
	if (!result)
		result = wait_exec(launch);
	if (result == -ECHILD && read(report[0], &error, sizeof(error)) == sizeof(error)) {
		launch->ended = 0;
		result = -error;
	}
	close(report[0]);
	return result;
}

// ---- to the entry point ------------------------------------------------------------------------------------

static int open_memory(const struct nfp_launch *launch)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/mem", launch->pid);
	return open(path, O_RDWR | O_CLOEXEC);
}

// As many bytes as a breakpoint has.
static int write_entry(int memory, uint64_t address, const uint8_t *bytes)
{
	uint8_t found[NFP_TRAP_BYTES];
	if (pwrite(memory, bytes, NFP_TRAP_BYTES, (off_t)address) != NFP_TRAP_BYTES ||
	    pread(memory, found, NFP_TRAP_BYTES, (off_t)address) != NFP_TRAP_BYTES)
		return errno ? -errno : -EIO;
	return memcmp(found, bytes, NFP_TRAP_BYTES) == 0 ? 0 : -EIO;
}

// Runs the program until it executes the breakpoint at its entry point, and gives it the signals of its own.
static int run_to_trap(struct nfp_launch *launch, struct nfp_registers *registers)
{
	int signal = 0, status;
	for (;;) {
		if (ptrace(PTRACE_CONT, launch->pid, 0, (long)signal) != 0 && errno != ESRCH)
			return -errno;
		int error = wait_stop(launch, &status);
		if (error)
			return error;
		if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8))
			return -EAGAIN;
		signal = WSTOPSIG(status);
		if (nfp_registers_read(launch->pid, registers) != 0)
			continue; // killed meanwhile: the wait says so
		if (signal == SIGTRAP && nfp_trap_address(registers) == launch->entry)
			return 0;
	}
}

static int come_to_entry(struct nfp_launch *launch, int memory)
{
	struct nfp_registers registers;
	uint8_t old[NFP_TRAP_BYTES];
	if (pread(memory, old, NFP_TRAP_BYTES, (off_t)launch->entry) != NFP_TRAP_BYTES)
		return -EIO;
	int error = write_entry(memory, launch->entry, NFP_TRAP);
	if (!error)
		error = run_to_trap(launch, &registers);
	if (!error)
		error = write_entry(memory, launch->entry, old);
	if (error)
		return error;
	nfp_program_counter_set(&registers, launch->entry);
	nfp_call_forget(&registers);
	memcpy(launch->registers, &registers, sizeof(registers));
	error = nfp_registers_write(launch->pid, &registers);
	if (error)
		return error;
	long kept = ptrace(PTRACE_GETSIGMASK, launch->pid, sizeof(launch->signal_mask), &launch->signal_mask);
	return kept == 0 ? 0 : -errno;
}

int nfp_launch_to_entry(struct nfp_launch *launch)
{
	int memory = open_memory(launch);
	if (memory < 0)
		return -errno;
	int error = come_to_entry(launch, memory);
	close(memory);
	return error;
}

// ---- hold and release --------------------------------------------------------------------------------------

static struct nfp_registers call_registers(const struct nfp_launch *launch, uint64_t number,
                                           uint64_t argument)
{
	struct nfp_registers registers;
	memcpy(&registers, launch->registers, sizeof(registers));
	nfp_call_make(&registers, launch->syscall_address, number, (const uint64_t[6]){argument});
	return registers;
}

// Signals wait until the release: a handler that a library's constructor installed would end it.
int nfp_launch_hold(struct nfp_launch *launch)
{
	struct nfp_registers registers = call_registers(launch, NFP_CALL_WAITS, 0);
	uint64_t all = ALL_SIGNALS;
	int error = ptrace(PTRACE_SETSIGMASK, launch->pid, sizeof(all), &all) == 0 ? 0 : -errno;
	if (!error)
		error = nfp_registers_write(launch->pid, &registers);
	if (!error && ptrace(PTRACE_DETACH, launch->pid, 0, 0) != 0)
		error = -errno;
	return error == -ESRCH ? -ECHILD : error;
}

// The thread itself has to say that it does not die with the monitor any more.
static int outlive_monitor(const struct nfp_launch *launch, struct nfp_seized *thread)
{
	struct nfp_registers registers = call_registers(launch, SYS_prctl, PR_SET_PDEATHSIG);
	return (int)nfp_step_over_call(thread, &registers, PATIENCE_NS);
}

static int release_seized(const struct nfp_launch *launch, struct nfp_seized *thread)
{
	int error = nfp_interrupt(thread);
	if (!error)
		error = nfp_wait_interrupted(thread, nfp_now_ns() + PATIENCE_NS);
	if (error)
		return error;
	if (!nfp_runs_in(launch->pid, launch->memory_fd)) // a thread of a library's constructor has exec'ed
		return -ESTALE;
	uint64_t stands = nfp_program_counter(&thread->registers);
	if (stands != launch->syscall_address && stands != launch->syscall_address + NFP_CALL_BYTES)
		return -EILSEQ;
	error = outlive_monitor(launch, thread);
	if (error)
		return error;
	memcpy(&thread->registers, launch->registers, sizeof(thread->registers));
	error = nfp_registers_write(thread->tid, &thread->registers);
	if (error)
		return error;
	long set = ptrace(PTRACE_SETSIGMASK, thread->tid, sizeof(launch->signal_mask), &launch->signal_mask);
	return set == 0 ? 0 : -errno;
}

// A program that cannot be released is killed by the caller: it never ran.
static int release_here(void *shared)
{
	struct nfp_launch *launch = shared;
	struct nfp_seized thread;
	struct nfp_priority before;
	int error = nfp_seize_with(launch->pid, PTRACE_O_TRACEEXEC, &thread);
	if (error)
		return error;
	nfp_priority_boost(&before);
	error = release_seized(launch, &thread);
	int released = nfp_release(&thread);
	nfp_priority_restore(&before);
	return error ? error : released;
}

int nfp_launch_release(struct nfp_launch *launch)
{
	int error;
	do {
		error = nfp_patch_process(release_here, launch);
	} while (error == -EAGAIN); // a thread that a constructor has made is in an exec
	return error == -ESRCH ? -ECHILD : error;
}
