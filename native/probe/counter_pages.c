// SPDX-License-Identifier: Apache-2.0
// Gives threads of the target their counters: takes the descriptors that the monitor has opened, maps their pages and
// lets the threads read them. Runs on the helper thread.
//
// A page that a thread may be reading is never unmapped: another one takes its place, which says "not counting". The
// kernel lets a process read counters as long as it has one counter mapped, and a thread may be held up just before that
// instruction: so the first counter stays mapped for good, stopped.
#define _GNU_SOURCE
#include "calibrate.h"
#include "counter.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, DISABLE = 0x2401, GROUP = 1 };

struct nfp_counter_pages nfp_counter_pages[NFP_THREAD_COUNT + 1]; // the last one is of the helper thread
static const struct nfp_counter_page not_counting;
static int channel[2] = {-1, -1}; // the helper's end, the monitor's end
static int key_descriptor = -1; // of the group whose first page stays
static const void *key_page;
static long counting_pid; // whose all this is: a forked child has its parent's numbers and none of its pages

// What a child has from the process that forked it is forgotten and not closed: it may be something else by now.
static void forget_parent(void)
{
	if (counting_pid == nfp_library.pid)
		return;
	counting_pid = nfp_library.pid;
	channel[0] = channel[1] = key_descriptor = -1;
	key_page = NULL;
	for (uint32_t i = 0; i <= NFP_THREAD_COUNT; i++)
		nfp_counter_pages[i] = (struct nfp_counter_pages){.pages = {NULL}};
}

long nfp_counters_begin(void)
{
	forget_parent();
	if (channel[0] >= 0)
		close(channel[0]);
	if (channel[1] >= 0)
		close(channel[1]);
	channel[0] = channel[1] = -1;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, channel) != 0)
		return -errno;
	return channel[1];
}

// The descriptors of the next message, at most `room`. Returns their number or -errno.
static long receive(int *descriptors, uint32_t room)
{
	char control[CMSG_SPACE(NFP_COUNTER_SLOTS * sizeof(int))] __attribute__((aligned(8)));
	char byte;
	struct iovec vector = {&byte, 1};
	struct msghdr message = {
	    .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	if (recvmsg(channel[0], &message, MSG_CMSG_CLOEXEC) != 1)
		return -EBADMSG;
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	if (!header || header->cmsg_type != SCM_RIGHTS)
		return -EBADMSG;
	uint32_t count = (uint32_t)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
	for (uint32_t i = 0; i < count; i++) {
		int descriptor = ((const int *)(const void *)CMSG_DATA(header))[i];
		if (i < room)
			descriptors[i] = descriptor;
		else
			close(descriptor);
	}
	return count < room ? count : room;
}

static void drop_page(const volatile struct nfp_counter_page *page)
{
	if (page == &not_counting || (const void *)page == key_page || !page)
		return;
	// NOLINTNEXTLINE(bugprone-unused-return-value): where it fails the page stays, which is as good
	mmap((void *)(uintptr_t)page, PAGE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

// Maps the pages of `count` counters. Returns 0 or -errno; then nothing is mapped.
static long map_pages(uint32_t count, const void **pages)
{
	int descriptors[NFP_COUNTER_SLOTS];
	long found = receive(descriptors, NFP_COUNTER_SLOTS), error = found == count ? 0 : -EBADMSG;
	uint32_t mapped = 0;
	for (; error == 0 && mapped < count; mapped++) {
		pages[mapped] = mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, descriptors[mapped], 0);
		if (pages[mapped] == MAP_FAILED) {
			error = -errno;
			break;
		}
	}
	for (uint32_t i = 0; error && i < mapped; i++)
		munmap((void *)(uintptr_t)pages[i], PAGE_BYTES);
	if (!error && !key_page) {
		key_page = pages[0];
		key_descriptor = fcntl(descriptors[0], F_DUPFD_CLOEXEC, 0);
	}
	for (long i = 0; i < found; i++)
		close(descriptors[i]);
	return error;
}

static struct nfp_thread *thread_at(uint32_t index)
{
	return index == NFP_THREAD_COUNT ? &nfp_calibrated_thread : &nfp_library.threads[index];
}

static void stop(uint32_t index)
{
	struct nfp_thread *thread = thread_at(index);
	struct nfp_counter_pages *counters = &nfp_counter_pages[index];
	__atomic_store_n(&thread->counted, 0, __ATOMIC_SEQ_CST);
	thread->timed_step = index != NFP_THREAD_COUNT;
	__atomic_and_fetch(&thread->gate, ~(uint32_t)NFP_GATE_COUNTED, __ATOMIC_SEQ_CST);
	__atomic_store_n(&thread->slow, (void *)nfp_slow_thunk, __ATOMIC_SEQ_CST);
	__atomic_store_n(&thread->limit, thread->shared ? 1 : 0,
	                 __ATOMIC_SEQ_CST); // partner: set_limit in ring_space.c
	for (uint32_t i = 0; i < NFP_COUNTER_SLOTS; i++) {
		const volatile struct nfp_counter_page *page = counters->pages[i];
		__atomic_store_n(&counters->pages[i], &not_counting, __ATOMIC_SEQ_CST);
		if (counters->mapped)
			drop_page(page);
	}
	counters->mapped = 0;
}

long nfp_counters_set(uint64_t index, uint64_t count, uint64_t given, uint64_t change)
{
	const void *pages[NFP_COUNTER_SLOTS];
	if (index > NFP_THREAD_COUNT || count > NFP_COUNTER_SLOTS)
		return -EINVAL;
	forget_parent();
	struct nfp_counter_pages *counters = &nfp_counter_pages[index];
	struct nfp_thread *thread = thread_at((uint32_t)index);
	long error = 0;
	if (count && given)
		__builtin_memcpy(pages, (const void *)given, count * sizeof(*pages));
	else if (count)
		error = map_pages((uint32_t)count, pages);
	stop((uint32_t)index);
	if (error || !count || !thread->shared)
		return error;
	__atomic_store_n(&counters->change,
	                 (uint32_t)(change % NFP_COUNTERS_CHANGES) << NFP_COUNTERS_CHANGE_SHIFT,
	                 __ATOMIC_SEQ_CST); // partner: write_pair, which still sees no page
	for (uint32_t i = 0; i < count; i++) {
		counters->polls[i] =
		    index == NFP_THREAD_COUNT ? 0 : (uint32_t)nfp_library.header->counted_polls[i];
		__atomic_store_n(&counters->pages[i], pages[i], __ATOMIC_SEQ_CST);
	}
	counters->mapped = !given;
	nfp_counters_choose(counters, (uint32_t)count);
	thread->counter_pages = counters;
	__atomic_store_n(&thread->slow, (void *)nfp_counted_thunk, __ATOMIC_SEQ_CST);
	thread->timed_step = 0;
	__atomic_store_n(&thread->counted, (uint8_t)count, __ATOMIC_SEQ_CST);
	if (nfp_wanted_gate() & NFP_GATE_OUTER) // partner: nfp_gate_of
		__atomic_or_fetch(&thread->gate, NFP_GATE_COUNTED, __ATOMIC_SEQ_CST);
	__atomic_store_n(&thread->limit, 1, __ATOMIC_SEQ_CST); // partner: set_limit in ring_space.c
	return 0;
}

void nfp_counters_end(void)
{
	if (counting_pid != nfp_library.pid)
		return; // nothing was ever counted in this process
	for (uint32_t i = 0; i <= NFP_THREAD_COUNT; i++)
		if (thread_at(i)->counter_pages)
			stop(i);
	if (key_descriptor >= 0)
		ioctl(key_descriptor, DISABLE, GROUP); // its group may be one that a killed monitor has left
	for (int end = 0; end < 2; end++) {
		if (channel[end] >= 0)
			close(channel[end]);
		channel[end] = -1;
	}
}
