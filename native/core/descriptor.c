// SPDX-License-Identifier: Apache-2.0
// The child has a descriptor table of its own. It hands on what is of the right kind, and the calling thread, which
// stands still meanwhile, runs on when the child has given up its memory: before the kernel closes its descriptors.
#define _GNU_SOURCE
#include "descriptor.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (64u << 10)
#define REAP_TRIES 1000
#define REAP_PAUSE_NS 20000
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

struct take {
	int32_t pid, number;
	enum nfp_descriptor_kind kind;
	int channel; // what the child hands the descriptor on through
	int result;
};

// None of these calls reaches the file system that a file belongs to.
static int is_memory(int fd)
{
	return fcntl(fd, F_GET_SEALS) >= 0;
}

// Of a pair (socketpair) the other end's maker is the process that has made both; of what was connected to a service
// it is the service, which would take what is sent for the monitor's own request.
static int is_channel(int fd, int32_t pid)
{
	int domain, type;
	struct ucred peer;
	socklen_t bytes = sizeof(int), peer_bytes = sizeof(peer);
	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != AF_UNIX)
		return 0;
	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_SEQPACKET)
		return 0;
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) == 0 && peer.pid == pid;
}

static int hand_on(int channel, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
	char byte = 0;
	struct iovec vector = {&byte, 1};
	struct msghdr message = {
	    .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	return sendmsg(channel, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

static int take(const struct take *take)
{
	int process = (int)syscall(SYS_pidfd_open, take->pid, 0);
	if (process < 0)
		return -errno;
	int fd = (int)syscall(SYS_pidfd_getfd, process, take->number, 0);
	if (fd < 0)
		return -errno;
	if (take->kind == NFP_DESCRIPTOR_MEMORY ? !is_memory(fd) : !is_channel(fd, take->pid))
		return -EMEDIUMTYPE;
	return hand_on(take->channel, fd);
}

// A child that has to wait at its end must not hold what the monitor gives up meanwhile, such as a session's lock.
static void close_all_but(int kept)
{
	if (kept > 0)
		syscall(SYS_close_range, 0, kept - 1, 0); // before Linux 5.9 they stay open
	syscall(SYS_close_range, kept + 1, ~0u, 0);
}

static int run(void *argument)
{
	struct take *work = argument;
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	close_all_but(work->channel);
	work->result = take(work);
	_exit(0);
}

static int receive(int channel)
{
	char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
	char byte;
	int fd;
	struct iovec vector = {&byte, 1};
	struct msghdr message = {
	    .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	if (recvmsg(channel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1)
		return -errno;
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
		return -EMFILE; // there was no room for it
	memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	return fd;
}

// Not longer than a child takes that has nothing to wait for.
static void reap(pid_t child)
{
	const struct timespec pause = {0, REAP_PAUSE_NS};
	for (int i = 0; i < REAP_TRIES && waitpid(child, NULL, WNOHANG | __WALL) == 0; i++)
		nanosleep(&pause, NULL);
}

int nfp_descriptor_take(int32_t pid, int32_t number, enum nfp_descriptor_kind kind)
{
	int ends[2];
	struct take work = {.pid = pid, .number = number, .kind = kind, .result = -ECHILD};
	if (number < 0)
		return -EBADF;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
		return -errno;
	uint8_t *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int result = stack == MAP_FAILED ? -errno : 0;
	if (!result) {
		work.channel = ends[1];
		pid_t child = clone(run, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK, &work);
		result = child < 0 ? -errno : work.result;
		if (result == 0)
			result = receive(ends[0]);
		if (child > 0)
			reap(child);
		munmap(stack, STACK_BYTES);
	}
	close(ends[0]);
	close(ends[1]);
	return result;
}
