// SPDX-License-Identifier: Apache-2.0
// The bootstrap: position-independent code that the monitor copies into a target. Linked into one flat
// block (bootstrap.lds) with nfp_boot_start first; it has no data and no relocations. nfp_boot_start runs on
// the stopped thread and only makes the helper thread; dlopen runs on the helper thread, because a stopped
// thread may hold the loader's or the allocator's lock.
#include "abi/boot.h"
#include "arch/arch.h"
#include <stddef.h>
#include <sys/syscall.h>

#define STACK_BYTES (256 << 10)
#define DETACHED 1 // PTHREAD_CREATE_DETACHED of glibc and musl
#define NOW_LOCAL_NODELETE (0x2 | 0x1000) // RTLD_NOW | RTLD_NODELETE
#define WAIT_NS 200000
#define WAITS_MAX 15000 // three seconds

static void *helper(void *argument);

// Returns to a breakpoint that the monitor has put behind the call.
__attribute__((section(".text.start"), used)) int nfp_boot_start(struct nfp_boot *boot)
{
	uint64_t attributes[16]; // pthread_attr_t is 56 bytes
	uint64_t thread;
	((int (*)(void *))boot->pthread_attr_init)(attributes);
	((int (*)(void *, int))boot->pthread_attr_setdetachstate)(attributes, DETACHED);
	((int (*)(void *, size_t))boot->pthread_attr_setstacksize)(attributes, STACK_BYTES);
	boot->created = ((int (*)(uint64_t *, void *, void *(*)(void *), void *))boot->pthread_create)(
	    &thread, attributes, helper, boot);
	return boot->created;
}

static void say(struct nfp_boot *boot, const char *text)
{
	uint32_t i = 0;
	for (; text && text[i] && i < sizeof(boot->message) - 1; i++)
		boot->message[i] = text[i];
	boot->message[i] = 0;
	__atomic_store_n(&boot->stage, NFP_BOOT_FAILED, __ATOMIC_RELEASE);
}

static int wait_for(struct nfp_boot *boot, int stage)
{
	int64_t pause[2] = {0, WAIT_NS};
	for (int i = 0; i < WAITS_MAX; i++) {
		if (__atomic_load_n(&boot->stage, __ATOMIC_ACQUIRE) == stage)
			return 1;
		nfp_syscall3(SYS_nanosleep, (long)pause, 0, 0);
	}
	return 0;
}

static char *append_text(char *to, const char *text)
{
	while (*text)
		*to++ = *text++;
	*to = 0;
	return to;
}

static char *append_number(char *to, long number)
{
	char digits[20];
	int count = 0;
	do {
		digits[count++] = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	while (count)
		*to++ = digits[--count];
	*to = 0;
	return to;
}

// The path names the helper thread, so that no two loads in the life of a target use the same one: the
// loader takes a known path for a loaded library. The thread's numbers are those of the pid namespace that
// /proc was mounted for, which need not be the thread's own: hence the link. Returns 0 without such a link.
static int memory_file_path(char *to, int fd)
{
	char link[24], thread[64]; // /proc/thread-self -> PID/task/TID
	append_text(link, "/proc/thread-self");
	long length = nfp_read_link(link, thread, sizeof(thread) - 1);
	if (length <= 0)
		return 0;
	thread[length] = 0;
	append_number(append_text(append_text(append_text(to, "/proc/"), thread), "/fd/"), fd);
	return 1;
}

static void *open_library(struct nfp_boot *boot, const char *path)
{
	return ((void *(*)(const char *, int))boot->dlopen)(path, NOW_LOCAL_NODELETE);
}

// Asks the monitor for a file in the target's own root directory.
static void *load_file(struct nfp_boot *boot)
{
	__atomic_store_n(&boot->stage, NFP_BOOT_WANTS_FILE, __ATOMIC_RELEASE);
	if (!wait_for(boot, NFP_BOOT_LIBRARY_FILLED))
		return say(boot, "the monitor did not send the library"), NULL;
	if (!boot->library_path[0])
		return say(boot, "there is no /proc and no directory for the library's file"), NULL;
	void *library = open_library(boot, boot->library_path);
	if (!library)
		say(boot, ((char *(*)(void))boot->dlerror)());
	return library;
}

static void *load(struct nfp_boot *boot)
{
	const unsigned int close_on_exec = 1, sealable = 2, executable = 0x10;
	const unsigned int flags = close_on_exec | sealable; // the monitor seals what it has written
	char path[128];
	long fd = nfp_syscall3(SYS_memfd_create, (long)boot->library_name, flags | executable, 0);
	if (fd < 0) // kernels before 6.3 do not know the second flag
		fd = nfp_syscall3(SYS_memfd_create, (long)boot->library_name, flags, 0);
	if (fd < 0)
		return say(boot, "memfd_create is refused"), NULL;
	boot->library_fd = (int32_t)fd;
	__atomic_store_n(&boot->stage, NFP_BOOT_WANTS_LIBRARY, __ATOMIC_RELEASE);
	if (!wait_for(boot, NFP_BOOT_LIBRARY_FILLED)) {
		nfp_syscall3(SYS_close, fd, 0, 0);
		return say(boot, "the monitor did not send the library"), NULL;
	}
	void *library = memory_file_path(path, (int)fd) ? open_library(boot, path) : NULL;
	if (!library) { // else the descriptor stays open: debuggers read the library by it (jit.c)
		nfp_syscall3(SYS_close, fd, 0, 0);
		library = load_file(boot);
	}
	void *entry =
	    library ? ((void *(*)(void *, const char *))boot->dlsym)(library, "nfp_helper_main") : NULL;
	if (library && !entry)
		say(boot, ((char *(*)(void))boot->dlerror)());
	return entry;
}

// Ends in a jump to the library's entry, so that nothing returns into this code: the library unmaps it.
static void *helper(void *argument)
{
	struct nfp_boot *boot = argument;
	void *entry = boot->entry ? (void *)boot->entry : load(boot);
	if (!entry)
		return NULL;
	return ((void *(*)(struct nfp_boot *))entry)(boot);
}
