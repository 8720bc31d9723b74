// SPDX-License-Identifier: Apache-2.0
// A thread in each system call that waits: "returned" tells which of them have come back, with what. Signals: SIGUSR1
// ends one call only, epoll_pwait in a thread of its own; "signals" tells handled signals and calls that ended.
#define _GNU_SOURCE
#include "commands.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct timespec long_time = {1000, 0};
static char bytes[65536];
static struct iovec vector = {bytes, 4096};

static int need(long result) // of what is made before the call that waits
{
	if (result < 0) {
		perror("waiting");
		exit(1);
	}
	return (int)result;
}

static int any_epoll(void)
{
	return need(epoll_create1(0));
}

static int pair_end(int option, int fill)
{
	int pair[2];
	struct timeval time = {1000, 0};
	need(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	need(setsockopt(pair[0], SOL_SOCKET, option, &time, sizeof(time)));
	while (fill && send(pair[0], bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	return pair[0];
}

static int empty_socket(void)
{
	return pair_end(SO_RCVTIMEO, 0);
}

static int full_socket(void)
{
	return pair_end(SO_SNDTIMEO, 1);
}

static int listener(struct sockaddr_un *name, socklen_t *size)
{
	struct timeval time = {1000, 0};
	int fd = need(socket(AF_UNIX, SOCK_STREAM, 0));
	*name = (struct sockaddr_un){.sun_family = AF_UNIX};
	need(bind(fd, (void *)name, sizeof(sa_family_t))); // the kernel chooses a name
	*size = sizeof(*name);
	need(getsockname(fd, (void *)name, size));
	need(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	need(listen(fd, 0));
	return fd;
}

static int any_pipe(void)
{
	int ends[2];
	need(pipe(ends));
	return ends[0];
}

static long wait_epoll_wait(void)
{
	struct epoll_event event;
	return syscall(SYS_epoll_wait, any_epoll(), &event, 1, -1);
}

static long wait_epoll_pwait(void)
{
	struct epoll_event event;
	sigset_t mask;
	sigfillset(&mask);
	return epoll_pwait(any_epoll(), &event, 1, -1, &mask);
}

static long wait_epoll_pwait2(void)
{
	struct epoll_event event;
	return syscall(441, any_epoll(), &event, 1, &long_time, NULL, 8);
}

static int semaphore(void)
{
	int set = need(semget(IPC_PRIVATE, 1, 0600));
	return set;
}

static struct sembuf down = {0, -1, 0};

static long wait_on_semaphore(const struct timespec *time)
{
	int set = semaphore();
	long result = time ? semtimedop(set, &down, 1, time) : semop(set, &down, 1);
	int error = errno;
	semctl(set, 0, IPC_RMID);
	errno = error;
	return result;
}

static long wait_semop(void)
{
	return wait_on_semaphore(NULL);
}

static long wait_semtimedop(void)
{
	return wait_on_semaphore(&long_time);
}

static sigset_t hup(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	return set;
}

static long wait_sigtimedwait(void)
{
	sigset_t set = hup();
	return sigtimedwait(&set, NULL, &long_time);
}

static long wait_sigwaitinfo(void)
{
	sigset_t set = hup();
	return syscall(SYS_rt_sigtimedwait, &set, NULL, NULL, 8);
}

static long wait_io_getevents(void)
{
	aio_context_t context = 0;
	struct io_event event;
	need(syscall(SYS_io_setup, 4, &context));
	return syscall(SYS_io_getevents, context, 1, 1, &event, NULL);
}

static long wait_io_pgetevents(void)
{
	aio_context_t context = 0;
	struct io_event event;
	need(syscall(SYS_io_setup, 4, &context));
	return syscall(SYS_io_pgetevents, context, 1, 1, &event, &long_time, NULL);
}

static int uring(void)
{
	struct io_uring_params parameters = {0};
	return (int)syscall(SYS_io_uring_setup, 4, &parameters);
}

static long wait_io_uring_enter(void)
{
	int ring = uring();
	return ring < 0 ? -1 : syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
}

static long wait_io_uring_timed(void)
{
	struct __kernel_timespec time = {.tv_sec = 1000};
	struct io_uring_getevents_arg argument = {.ts = (uintptr_t)&time};
	int ring = uring();
	unsigned int flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
	return ring < 0 ? -1 : syscall(SYS_io_uring_enter, ring, 0, 1, flags, &argument, sizeof(argument));
}

static long wait_accept(void)
{
	struct sockaddr_un name;
	socklen_t size;
	return syscall(SYS_accept, listener(&name, &size), NULL, NULL);
}

static long wait_accept4(void)
{
	struct sockaddr_un name;
	socklen_t size;
	return accept4(listener(&name, &size), NULL, NULL, SOCK_CLOEXEC);
}

static long wait_connect(void)
{
	struct sockaddr_un name;
	struct timeval time = {1000, 0};
	socklen_t size;
	listener(&name, &size);
	for (;;) { // until its queue is full
		int fd = need(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
		if (connect(fd, (void *)&name, size) != 0)
			break;
	}
	int fd = need(socket(AF_UNIX, SOCK_STREAM, 0));
	need(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)));
	return connect(fd, (void *)&name, size);
}

static long wait_recvfrom(void)
{
	return recv(empty_socket(), bytes, 1, 0);
}

static long wait_recvmsg(void)
{
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
	return recvmsg(empty_socket(), &message, 0);
}

static long wait_recvmmsg(void)
{
	struct mmsghdr message = {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}};
	return recvmmsg(empty_socket(), &message, 1, 0, NULL);
}

static long wait_read(void)
{
	return read(empty_socket(), bytes, 1);
}

static long wait_readv(void)
{
	return readv(empty_socket(), &vector, 1);
}

static long wait_sendto(void)
{
	return send(full_socket(), bytes, 4096, 0);
}

static long wait_sendmsg(void)
{
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
	return sendmsg(full_socket(), &message, 0);
}

static long wait_sendmmsg(void)
{
	struct mmsghdr message = {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}};
	return sendmmsg(full_socket(), &message, 1, 0);
}

static long wait_write(void)
{
	return write(full_socket(), bytes, 4096);
}

static long wait_writev(void)
{
	return writev(full_socket(), &vector, 1);
}

static long wait_sendfile(void)
{
	int file = need(memfd_create("sent", 0));
	need(ftruncate(file, 65536));
	return sendfile(full_socket(), file, NULL, 65536);
}

static long wait_splice(void)
{
	int ends[2];
	need(pipe(ends));
	return splice(empty_socket(), NULL, ends[1], NULL, 4096, 0);
}

// ---- those that the kernel itself makes again ------------------------------------------------------------------

static long wait_poll(void)
{
	return syscall(SYS_poll, NULL, 0, 1000000);
}

static long wait_ppoll(void)
{
	return ppoll(NULL, 0, &long_time, NULL);
}

static long wait_select(void)
{
	struct timeval time = {1000, 0};
	return syscall(SYS_select, 0, NULL, NULL, NULL, &time);
}

static long wait_pselect(void)
{
	return pselect(0, NULL, NULL, NULL, &long_time, NULL);
}

static long wait_nanosleep(void)
{
	return syscall(SYS_nanosleep, &long_time, NULL);
}

static long wait_clock_nanosleep(void)
{
	errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &long_time, NULL);
	return errno ? -1 : 0;
}

static long wait_futex(void)
{
	int word = 0;
	return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &long_time, NULL, 0);
}

static long wait_msgrcv(void)
{
	int queue = need(msgget(IPC_PRIVATE, 0600));
	long result = msgrcv(queue, bytes, 8, 0, 0);
	int error = errno;
	msgctl(queue, IPC_RMID, NULL);
	errno = error;
	return result;
}

static long wait_mq_receive(void)
{
	char name[64];
	struct mq_attr sizes = {.mq_maxmsg = 1, .mq_msgsize = 8};
	snprintf(name, sizeof(name), "/waiting-%d", getpid());
	mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, &sizes);
	mq_unlink(name);
	return queue == (mqd_t)-1 ? -1 : mq_receive(queue, bytes, 8, NULL);
}

static long wait_pipe(void)
{
	return read(any_pipe(), bytes, 1);
}

static long wait_inotify(void)
{
	return read(need(inotify_init1(0)), bytes, 4096);
}

static long wait_eventfd(void)
{
	return read(need(eventfd(0, 0)), bytes, 8);
}

static long wait_timerfd(void)
{
	struct itimerspec time = {.it_value = {1000, 0}};
	int timer = need(timerfd_create(CLOCK_MONOTONIC, 0));
	need(timerfd_settime(timer, 0, &time, NULL));
	return read(timer, bytes, 8);
}

static long wait_signalfd(void)
{
	sigset_t set = hup();
	return read(need(signalfd(-1, &set, 0)), bytes, 128);
}

static long wait_pause(void)
{
	return syscall(SYS_pause);
}

static long wait_flock(void)
{
	char path[] = "/tmp/waiting-XXXXXX";
	int holds = need(mkstemp(path)), waits = need(open(path, O_RDWR));
	unlink(path);
	need(flock(holds, LOCK_EX));
	return flock(waits, LOCK_EX);
}

static struct waiter {
	const char *name;
	long (*wait)(void);
	long result;
	int error;
	volatile int has_returned;
} waiters[] = {
#define WAITER(name) {#name, wait_##name, 0, 0, 0}
    WAITER(epoll_wait),	   WAITER(epoll_pwait),	     WAITER(epoll_pwait2),   WAITER(semop),
    WAITER(semtimedop),	   WAITER(sigtimedwait),     WAITER(sigwaitinfo),    WAITER(io_getevents),
    WAITER(io_pgetevents), WAITER(io_uring_enter),   WAITER(io_uring_timed), WAITER(accept),
    WAITER(accept4),	   WAITER(connect),	     WAITER(recvfrom),	     WAITER(recvmsg),
    WAITER(recvmmsg),	   WAITER(read),	     WAITER(readv),	     WAITER(sendto),
    WAITER(sendmsg),	   WAITER(sendmmsg),	     WAITER(write),	     WAITER(writev),
    WAITER(sendfile),	   WAITER(splice),	     WAITER(poll),	     WAITER(ppoll),
    WAITER(select),	   WAITER(pselect),	     WAITER(nanosleep),	     WAITER(clock_nanosleep),
    WAITER(futex),	   WAITER(msgrcv),	     WAITER(mq_receive),     WAITER(pipe),
    WAITER(inotify),	   WAITER(eventfd),	     WAITER(timerfd),	     WAITER(signalfd),
    WAITER(pause),	   WAITER(flock),
};
#define WAITERS (sizeof(waiters) / sizeof(waiters[0]))

static void *run_waiter(void *argument)
{
	struct waiter *waiter = argument;
	pthread_setname_np(pthread_self(), waiter->name);
	waiter->result = waiter->wait();
	waiter->error = errno;
	waiter->has_returned = 1;
	return NULL;
}

static const char *tell_returned(long unused)
{
	static char answer[4096];
	size_t used = 0;
	(void)unused;
	answer[0] = 0;
	for (size_t i = 0; i < WAITERS; i++)
		if (waiters[i].has_returned)
			used += (size_t)snprintf(answer + used, sizeof(answer) - used, "%s %ld %s;",
						 waiters[i].name, waiters[i].result,
						 strerrorname_np(waiters[i].error));
	return answer;
}

// ---- signals -----------------------------------------------------------------------------------------------------

static volatile long handled, ended;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

static void *take_signals(void *nothing)
{
	struct epoll_event event;
	sigset_t none;
	int epoll = any_epoll();
	sigemptyset(&none);
	pthread_setname_np(pthread_self(), "signals");
	while (epoll_pwait(epoll, &event, 1, -1, &none) < 0 && errno == EINTR)
		ended++;
	return nothing;
}

static const char *tell_signals(long unused)
{
	static char answer[64];
	(void)unused;
	snprintf(answer, sizeof(answer), "%ld %ld", handled, ended);
	return answer;
}

int main(void)
{
	static const struct command commands[] = {
	    {"returned", tell_returned}, {"signals", tell_signals}, {NULL, NULL}};
	pthread_attr_t small;
	pthread_t thread;
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handle}, NULL);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 128 << 10);
	for (size_t i = 0; i < WAITERS; i++)
		need(-pthread_create(&thread, &small, run_waiter, &waiters[i]));
	need(-pthread_create(&thread, &small, take_signals, NULL));
	usleep(300000);
	return obey(commands);
}
