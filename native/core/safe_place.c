// SPDX-License-Identifier: Apache-2.0
// Each candidate is stopped, looked at and, where it may hold a lock, followed to its next system call. The next
// candidate is stopped only when those before it have not come soon: most threads are never touched.
#include "safe_place.h"
#include <errno.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define SECOND_AFTER_NS 100000000u // the first one mostly comes by then, on a busy machine, too
#define NEXT_AFTER_NS 20000000u
#define POLL_NS 5000
#define IDLE_POLL_NS 50000
#define IDLE_AFTER_NS 2000000u // without a stop
#define LET_GO_PATIENCE_NS 1000000000u

enum { FAR, AT_SAFE_PLACE };

struct followed {
	struct nfp_seized threads[NFP_FOLLOWED_MAX];
	uint32_t count;
	int replaced; // one of them has started another program
};

// System calls at which a thread holds no lock of libc, and which can be made again without harm.
static int is_safe_call(uint64_t number)
{
	switch (number) {
#ifdef SYS_poll // not on processors that Linux came to later
	case SYS_poll:
	case SYS_select:
	case SYS_epoll_wait:
	case SYS_pause:
#endif
	case SYS_ppoll:
	case SYS_pselect6:
	case SYS_epoll_pwait:
	case 441: // epoll_pwait2
	case SYS_nanosleep:
	case SYS_clock_nanosleep:
	case SYS_rt_sigsuspend:
	case SYS_rt_sigtimedwait:
	case SYS_restart_syscall: // goes on with a sleep, a poll or a timed futex wait
	case SYS_accept:
	case SYS_accept4:
	case SYS_recvfrom:
	case SYS_recvmsg:
	case SYS_read: // of a pipe or terminal: stdio's own lock may be held, none that pthread_create takes
	case SYS_readv:
	case SYS_wait4:
	case SYS_waitid:
		return 1;
	default:
		return 0;
	}
}

// At the entry of these, too: the C library makes none of them with the allocator's lock held (that is mmap,
// munmap, mprotect, madvise and brk). They are skipped and made again, so what they do does not matter.
static int is_safe_entry(uint64_t number)
{
	switch (number) {
	case SYS_write:
	case SYS_writev:
	case SYS_pwrite64:
	case SYS_sendto:
	case SYS_sendmsg:
	case SYS_sendmmsg:
	case SYS_recvmmsg:
	case SYS_ioctl:
	case SYS_sched_yield:
	case SYS_clock_gettime:
		return 1;
	default:
		return is_safe_call(number);
	}
}

// The loader gives the first thread its thread-local storage when all libraries are mapped. Before that it reads them,
// and nothing of libc may be called: it is not relocated.
static int has_thread_storage(const struct nfp_registers *registers)
{
	return nfp_registers_base(registers) != 0;
}

// Whether the stopped thread is inside one: the kernel says so by its number, and by a result that means "ended by the
// stop".
static int is_blocked_safely(const struct nfp_registers *registers)
{
	int64_t number = nfp_call_number(registers), result = nfp_call_result(registers);
	int interrupted = result == -EINTR || (result <= -512 && result >= -516);
	return number >= 0 && interrupted && is_safe_call((uint64_t)number) && has_thread_storage(registers);
}

static int go_on(struct nfp_seized *thread, int signal)
{
	thread->stopped = 0;
	if (ptrace(PTRACE_SYSCALL, thread->tid, 0, (long)signal) != 0)
		thread->gone = errno == ESRCH; // killed meanwhile
	return FAR;
}

// The stop that was asked for, or a signal that stops the whole target: such a thread stays stopped.
static int judge_stop(struct nfp_safe_place *place, struct nfp_seized *thread, int signal)
{
	if (is_blocked_safely(&thread->registers)) {
		place->at_entry = 0;
		return AT_SAFE_PLACE;
	}
	if (nfp_is_group_stop(signal)) {
		thread->stopped = 0;
		ptrace(PTRACE_LISTEN, thread->tid, 0, 0);
		return FAR;
	}
	if (nfp_restart_interrupted_call(&thread->registers))
		nfp_registers_write(thread->tid, &thread->registers);
	return go_on(thread, 0);
}

static int judge(struct nfp_safe_place *place, struct nfp_seized *thread, int status)
{
	if (nfp_signal_of(status))
		return go_on(thread, WSTOPSIG(status));
	if (nfp_registers_read(thread->tid, &thread->registers) != 0) {
		thread->gone = 1;
		return FAR;
	}
	if (WSTOPSIG(status) != NFP_CALL_STOP)
		return judge_stop(place, thread, WSTOPSIG(status));
	// At an entry the kernel has stored -ENOSYS as the result.
	if (nfp_call_result(&thread->registers) != -ENOSYS ||
	    !is_safe_entry((uint64_t)nfp_call_number(&thread->registers)) ||
	    !has_thread_storage(&thread->registers))
		return go_on(thread, 0);
	place->at_entry = 1;
	return AT_SAFE_PLACE;
}

static int begin_next(struct nfp_safe_place *place, struct followed *followed)
{
	struct nfp_seized *thread = &followed->threads[followed->count];
	pid_t tid = place->tids[place->tried++];
	// Until the end of the first thread is answered, no other one gets its number by an exec (address_space.h).
	long options =
	    PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | (tid == place->pid ? PTRACE_O_TRACEEXIT : 0);
	int error = nfp_seize_with(tid, options, thread);
	if (error)
		return error;
	followed->count++;
	error = nfp_interrupt(thread);
	thread->gone = error == -ESRCH;
	return error;
}

// Looks whether one has stopped at a safe place. `stops` counts all stops that were met.
static struct nfp_seized *look_at_all(struct nfp_safe_place *place, struct followed *followed,
                                      uint32_t *stops)
{
	for (uint32_t i = 0; i < followed->count; i++) {
		struct nfp_seized *thread = &followed->threads[i];
		int status, error = thread->gone ? -ESRCH : nfp_wait_stop(thread, 0, &status);
		*stops += error == 0;
		followed->replaced |= error == -ESTALE;
		if (!error && judge(place, thread, status) == AT_SAFE_PLACE) {
			place->since_ns = nfp_now_ns();
			return thread;
		}
	}
	return NULL;
}

static struct nfp_seized *follow(struct nfp_safe_place *place, struct followed *followed,
                                 uint64_t patience_ns, int *error)
{
	uint64_t start_ns = nfp_now_ns(), now_ns = start_ns, next_ns = start_ns, met_ns = start_ns;
	while (now_ns - start_ns < patience_ns && !followed->replaced) {
		uint32_t stops = 0;
		int is_turn = place->tried < place->count && followed->count < NFP_FOLLOWED_MAX;
		if (is_turn && now_ns >= next_ns) {
			int failed = begin_next(place, followed);
			*error = failed ? failed : *error;
			next_ns = failed ? now_ns
			                 : now_ns + (followed->count == 1 ? SECOND_AFTER_NS : NEXT_AFTER_NS);
		} else if (!is_turn && !followed->count)
			return NULL;
		struct nfp_seized *found = look_at_all(place, followed, &stops);
		if (found)
			return found;
		now_ns = nfp_now_ns();
		if (stops)
			met_ns = now_ns;
		long pause_ns = now_ns - met_ns < IDLE_AFTER_NS ? POLL_NS : IDLE_POLL_NS;
		if (!stops)
			nanosleep(&(struct timespec){0, pause_ns}, NULL);
	}
	return NULL;
}

// Nobody else may be followed while the chosen thread is made to call libc: one that stops at a system call can hold
// the lock that this call waits for.
static int let_others_go(struct followed *followed, const struct nfp_seized *chosen)
{
	int result = 0;
	uint64_t deadline_ns = nfp_now_ns() + LET_GO_PATIENCE_NS;
	for (uint32_t i = 0; i < followed->count; i++)
		if (&followed->threads[i] != chosen && !followed->threads[i].gone)
			nfp_interrupt(&followed->threads[i]);
	for (uint32_t i = 0; i < followed->count; i++) {
		struct nfp_seized *thread = &followed->threads[i];
		if (thread == chosen || thread->gone)
			continue;
		int error = nfp_wait_interrupted(thread, deadline_ns);
		followed->replaced |= error == -ESTALE;
		if (error == -ETIMEDOUT) // the end of this process lets it go
			result = -EAGAIN;
		nfp_release(thread);
	}
	return result;
}

int nfp_safe_place_find(struct nfp_safe_place *place, uint64_t patience_ns)
{
	struct followed followed = {.count = 0};
	int error = -ESRCH;
	struct nfp_seized *chosen = follow(place, &followed, patience_ns, &error);
	int held = let_others_go(&followed, chosen);
	held = followed.replaced ? -ESTALE : held;
	if (chosen && !held)
		place->thread = *chosen;
	else if (chosen)
		nfp_release(chosen);
	if (chosen || held)
		return held;
	return followed.count ? -EAGAIN : error;
}
