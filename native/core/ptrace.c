// SPDX-License-Identifier: Apache-2.0
// PTRACE_SEIZE and PTRACE_INTERRUPT: no signal is sent to the target, and none of its own is lost.
#include "ptrace.h"
#include "thread_set.h"
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#define POLL_NS 5000
#define YIELDS 50
#define STEPS_MAX 8
#define ERESTARTNOHAND 514 // the kernel's own: make it again, but EINTR when a handler runs
#define SEIZE_PATIENCE_US 200000

uint64_t nfp_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void nfp_priority_boost(struct nfp_priority *before)
{
	before->priority = getpriority(PRIO_PROCESS, 0); // of this thread
	before->slack_ns = prctl(PR_GET_TIMERSLACK);
	setpriority(PRIO_PROCESS, 0, -20);
	prctl(PR_SET_TIMERSLACK, 1);
}

void nfp_priority_restore(const struct nfp_priority *before)
{
	setpriority(PRIO_PROCESS, 0, before->priority);
	if (before->slack_ns > 0)
		prctl(PR_SET_TIMERSLACK, before->slack_ns);
}

int nfp_seize(pid_t tid, struct nfp_seized *thread)
{
	return nfp_seize_with(tid, 0, thread);
}

// Of the patch process, or of the thread that waits for it.
static __thread sigjmp_buf out_of_seize;
static __thread volatile sig_atomic_t is_seizing;

static void leave_seize(int signal)
{
	(void)signal;
	if (is_seizing) {
		is_seizing = 0;
		siglongjmp(out_of_seize, 1); // the kernel would make the system call again
	}
}

// A thread that execs has the lock that PTRACE_SEIZE waits for until all others of its process have ended, and those
// that are traced end when their tracer has answered: that must not be this process while it waits for the lock.
int nfp_seize_with(pid_t tid, long options, struct nfp_seized *thread)
{
	const struct itimerval patience = {{0, 0}, {0, SEIZE_PATIENCE_US}}, none = {{0, 0}, {0, 0}};
	struct sigaction action = {.sa_handler = leave_seize};
	sigset_t alarm;
	*thread = (struct nfp_seized){.tid = tid};
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	if (sigsetjmp(out_of_seize, 1) != 0)
		return nfp_is_traced_here(tid) ? 0 : -EAGAIN;
	sigaction(SIGALRM, &action, NULL);
	sigprocmask(SIG_UNBLOCK, &alarm, NULL);
	is_seizing = 1;
	setitimer(ITIMER_REAL, &patience, NULL);
	int error = ptrace(PTRACE_SEIZE, tid, 0, options) == 0 ? 0 : -errno;
	is_seizing = 0;
	setitimer(ITIMER_REAL, &none, NULL);
	sigprocmask(SIG_BLOCK, &alarm, NULL);
	return error;
}

int nfp_interrupt(struct nfp_seized *thread)
{
	return ptrace(PTRACE_INTERRUPT, thread->tid, 0, 0) == 0 ? 0 : -errno;
}

// What has its number from now on is not what was seized: it goes on, and nothing is changed in it.
static int on_stop(struct nfp_seized *thread, int status)
{
	int event = status >> 16;
	thread->gone = event == PTRACE_EVENT_EXEC || event == PTRACE_EVENT_EXIT;
	thread->stopped = !thread->gone;
	if (event == PTRACE_EVENT_EXIT)
		ptrace(PTRACE_CONT, thread->tid, 0, 0);
	if (event == PTRACE_EVENT_EXEC)
		ptrace(PTRACE_DETACH, thread->tid, 0, 0);
	return event == PTRACE_EVENT_EXEC ? -ESTALE : thread->gone ? -ESRCH : 0;
}

int nfp_wait_stop(struct nfp_seized *thread, uint64_t deadline_ns, int *status)
{
	for (unsigned int spin = 0;; spin++) {
		pid_t waited = waitpid(thread->tid, status, __WALL | WNOHANG);
		if (waited == thread->tid && WIFSTOPPED(*status))
			return on_stop(thread, *status);
		if (waited == thread->tid || (waited < 0 && errno == ECHILD)) {
			thread->gone = 1;
			return -ESRCH;
		}
		if (nfp_now_ns() > deadline_ns)
			return -ETIMEDOUT;
		if (spin < YIELDS)
			sched_yield();
		else
			nanosleep(&(struct timespec){0, POLL_NS}, 0);
	}
}

int nfp_signal_of(int status)
{
	int is_event = status >> 16 != 0 || WSTOPSIG(status) == NFP_CALL_STOP;
	return is_event ? 0 : WSTOPSIG(status);
}

int nfp_is_group_stop(int signal)
{
	return signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

int nfp_wait_interrupted(struct nfp_seized *thread, uint64_t deadline_ns)
{
	for (;;) {
		int status, error = nfp_wait_stop(thread, deadline_ns, &status);
		if (error)
			return error;
		if (status >> 16 == PTRACE_EVENT_STOP)
			return nfp_registers_read(thread->tid, &thread->registers);
		// A signal of its own came first, which it gets, or the end of a system call. The kernel has forgotten
		// the interrupt.
		thread->stopped = 0;
		ptrace(PTRACE_CONT, thread->tid, 0, (long)nfp_signal_of(status));
		nfp_interrupt(thread);
	}
}

// These end with EINTR when a thread is stopped and goes on, although no signal handler ran (signal(7)), and had done
// nothing by then. Others that wait are made again by the kernel.
static int ends_with_eintr(uint64_t number)
{
	switch (number) {
#ifdef SYS_epoll_wait // not on processors that Linux came to later
	case SYS_epoll_wait:
#endif
	case SYS_epoll_pwait:
	case 441: // epoll_pwait2
	case SYS_semop:
	case SYS_semtimedop:
	case SYS_rt_sigtimedwait:
	case SYS_io_getevents:
	case SYS_io_pgetevents:
	case 426:  // io_uring_enter
	case SYS_connect: // these where the socket has a timeout
	case SYS_accept:
	case SYS_accept4:
	case SYS_recvfrom:
	case SYS_recvmsg:
	case SYS_recvmmsg:
	case SYS_sendto:
	case SYS_sendmsg:
	case SYS_sendmmsg:
	case SYS_read:
	case SYS_readv:
	case SYS_write:
	case SYS_writev:
	case SYS_sendfile:
	case SYS_splice:
		return 1;
	default:
		return 0;
	}
}

int64_t nfp_step_over_call(struct nfp_seized *thread, struct nfp_registers *registers, uint64_t patience_ns)
{
	uint64_t behind = nfp_program_counter(registers) + NFP_CALL_BYTES;
	int error = nfp_registers_write(thread->tid, registers);
	// The first step may only finish the system call at whose entry the thread stands.
	for (int step = 0; step < STEPS_MAX && !error; step++) {
		int status;
		if (ptrace(PTRACE_SINGLESTEP, thread->tid, 0, 0) != 0)
			return -errno;
		error = nfp_wait_stop(thread, nfp_now_ns() + patience_ns, &status);
		if (!error)
			error = nfp_registers_read(thread->tid, registers);
		if (!error && nfp_program_counter(registers) == behind)
			return nfp_call_result(registers);
	}
	return error ? error : -EDEADLK;
}

int nfp_restart_interrupted_call(struct nfp_registers *registers)
{
	int64_t number = nfp_call_number(registers);
	if (number < 0 || nfp_call_result(registers) != -EINTR || !ends_with_eintr((uint64_t)number))
		return 0;
	nfp_call_result_set(registers, -ERESTARTNOHAND);
	return 1;
}

int nfp_release(struct nfp_seized *thread)
{
	if (thread->gone)
		return 0;
	if (thread->stopped && nfp_restart_interrupted_call(&thread->registers))
		nfp_registers_write(thread->tid, &thread->registers);
	thread->stopped = 0;
	return ptrace(PTRACE_DETACH, thread->tid, 0, (long)thread->signal) == 0 ? 0 : -errno;
}
