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

#define INT3 0xcc
#define PATIENCE_NS 10000000000ull
#define ALL_SIGNALS (~(uint64_t)0)
_Static_assert(sizeof(struct user_regs_struct) <= sizeof(((struct nfp_launch *)0)->registers), "registers");

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

static int write_byte(int memory, uint64_t address, uint8_t byte)
{
	uint8_t found;
	if (pwrite(memory, &byte, 1, (off_t)address) != 1 || pread(memory, &found, 1, (off_t)address) != 1)
		return errno ? -errno : -EIO;
	return found == byte ? 0 : -EIO;
}

// Runs the program until it executes the int3 at its entry point, and gives it the signals of its own.
static int run_to_int3(struct nfp_launch *launch, struct user_regs_struct *registers)
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
		if (ptrace(PTRACE_GETREGS, launch->pid, 0, registers) != 0)
			continue; // killed meanwhile: the wait says so
		if (signal == SIGTRAP && registers->rip == launch->entry + 1)
			return 0;
	}
}

static int come_to_entry(struct nfp_launch *launch, int memory)
{
	struct user_regs_struct registers;
	uint8_t old;
	if (pread(memory, &old, 1, (off_t)launch->entry) != 1)
		return -EIO;
	int error = write_byte(memory, launch->entry, INT3);
	if (!error)
		error = run_to_int3(launch, &registers);
	if (!error)
		error = write_byte(memory, launch->entry, old);
	if (error)
		return error;
	registers.rip = launch->entry;
	registers.orig_rax = (uint64_t)-1;
	memcpy(launch->registers, &registers, sizeof(registers));
	if (ptrace(PTRACE_SETREGS, launch->pid, 0, &registers) != 0 ||
	    ptrace(PTRACE_GETSIGMASK, launch->pid, sizeof(launch->signal_mask), &launch->signal_mask) != 0)
		return -errno;
	return 0;
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

static struct user_regs_struct call_registers(const struct nfp_launch *launch, uint64_t number)
{
	struct user_regs_struct registers;
	memcpy(&registers, launch->registers, sizeof(registers));
	registers.rip = launch->syscall_address;
	registers.rax = number;
	registers.orig_rax = (uint64_t)-1;
	return registers;
}

// Signals wait until the release: a handler that a library's constructor installed would end pause().
int nfp_launch_hold(struct nfp_launch *launch)
{
	struct user_regs_struct registers = call_registers(launch, SYS_pause);
	uint64_t all = ALL_SIGNALS;
	if (ptrace(PTRACE_SETSIGMASK, launch->pid, sizeof(all), &all) != 0 ||
	    ptrace(PTRACE_SETREGS, launch->pid, 0, &registers) != 0 ||
	    ptrace(PTRACE_DETACH, launch->pid, 0, 0) != 0)
		return errno == ESRCH ? -ECHILD : -errno;
	return 0;
}

// The thread itself has to say that it does not die with the monitor any more.
static int outlive_monitor(const struct nfp_launch *launch, struct nfp_seized *thread)
{
	struct user_regs_struct registers = call_registers(launch, SYS_prctl);
	registers.rdi = PR_SET_PDEATHSIG;
	registers.rsi = 0;
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
	uint64_t stands = thread->registers.rip;
	if (stands != launch->syscall_address && stands != launch->syscall_address + NFP_SYSCALL_BYTES)
		return -EILSEQ;
	error = outlive_monitor(launch, thread);
	if (error)
		return error;
	memcpy(&thread->registers, launch->registers, sizeof(thread->registers));
	if (ptrace(PTRACE_SETREGS, thread->tid, 0, &thread->registers) != 0 ||
	    ptrace(PTRACE_SETSIGMASK, thread->tid, sizeof(launch->signal_mask), &launch->signal_mask) != 0)
		return -errno;
	return 0;
}

// A program that cannot be released is killed by the caller: it never ran.
static int release_here(void *shared)
{
	struct nfp_launch *launch = shared;
	struct nfp_seized thread;
	struct nfp_haste before;
	int error = nfp_seize_with(launch->pid, PTRACE_O_TRACEEXEC, &thread);
	if (error)
		return error;
	nfp_haste_begin(&before);
	error = release_seized(launch, &thread);
	int released = nfp_release(&thread);
	nfp_haste_end(&before);
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
