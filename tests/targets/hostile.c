// SPDX-License-Identifier: Apache-2.0
// A target that is hostile on purpose: its pthread_create starts no helper thread. A thread of its own talks to the
// monitor instead, in one of many ways: hostile MODE [PATH]. It drops root's rights first. As a library that is
// preloaded (HOSTILE_MODE, HOSTILE_PATH) it does so in any program.
//   turn      becomes hostile
//   fork N    forks N children that call `step` for ever, of which the first is hostile; answers their process ids
//   step N    calls step N times
//   kept      what the monitor wrote into the library's memory file: bytes, seals
//   end       the children end
#include "hostile.h"
#include "commands.h"
#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/un.h>
#include <sys/wait.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define NOBODY 65534
#define CHILDREN_MAX 16
#define NO_SUCH_DESCRIPTOR 900
#define STATUS 3

static struct nfp_boot *volatile boot_page;
static const char *path; // of a file that this user may read and not write
static int library_file = -1;
static pid_t children[CHILDREN_MAX];
static int child_count;
static volatile long sink;

static NOINLINE long step(long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

// ---- descriptors ------------------------------------------------------------------------------------------------

static int open_read_only(void)
{
	return open(path, O_RDONLY | O_NONBLOCK);
}

static int open_path_only(void)
{
	return open(path, O_PATH);
}

static int open_device(void)
{
	return open("/dev/zero", O_RDWR);
}

static int open_nothing(void)
{
	return NO_SUCH_DESCRIPTOR;
}

static int open_negative(void)
{
	return -100; // AT_FDCWD
}

static int open_pipe(void)
{
	int ends[2];
	return pipe(ends) == 0 ? ends[1] : -1;
}

static int open_socket(void)
{
	int ends[2];
	return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 ? ends[0] : -1;
}

// Of another file system than memory files have.
static int open_unlinked(void)
{
	char name[64];
	snprintf(name, sizeof(name), "/dev/shm/memfd:nfprobe-session-%d", (int)getpid());
	int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	unlink(name);
	return fd;
}

static int reopen(int fd, int flags)
{
	char name[64];
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	return open(name, flags);
}

static int name_of_library(void)
{
	return memfd_create(boot_page->library_name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

static int open_memory_read_only(void)
{
	return reopen(name_of_library(), O_RDONLY);
}

static int open_memory_path_only(void)
{
	return reopen(name_of_library(), O_PATH);
}

static int open_memory_full(void)
{
	int fd = name_of_library();
	return ftruncate(fd, 1 << 20) == 0 ? fd : -1;
}

static int open_memory_sealed(void)
{
	int fd = name_of_library();
	return fcntl(fd, F_ADD_SEALS, F_SEAL_GROW) == 0 ? fd : -1;
}

static int open_memory_appending(void)
{
	int fd = name_of_library();
	return fcntl(fd, F_SETFL, O_APPEND) == 0 ? fd : -1;
}

static int open_memory_mapped(void) // cannot be sealed against writing
{
	int fd = name_of_library();
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : fd;
}

static int open_memory_other(void)
{
	return memfd_create("something-else", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

static int open_session_read_only(void)
{
	return reopen(make_session(TOTAL_BYTES, SOUND_SEALS).fd, O_RDONLY);
}

static int open_session_path_only(void)
{
	return reopen(make_session(TOTAL_BYTES, SOUND_SEALS).fd, O_PATH);
}

// ---- what is done with the monitor --------------------------------------------------------------------------------

static const struct mode *mode;

struct mode {
	const char *name;
	void (*act)(const struct mode *mode);
	int (*open)(void);
	int seals;
	uint64_t bytes;
	void (*spoil)(struct hostile_session *session); // before the monitor sees it
	void (*meanwhile)(struct hostile_session *session);
};

static void give_library(const struct mode *mode)
{
	ask_for_library(boot_page, mode->open());
}

static void give_session(const struct mode *mode)
{
	offer_session(boot_page, mode->open());
}

// Two files take turns at one number: a memory file as it should be, and one of root's.
static void swap(int number, int first, int second)
{
	for (int i = 0; i < 400000; i++)
		dup2(i & 1 ? first : second, number);
}

static void reuse_library(const struct mode *mode)
{
	int memory = name_of_library(), other = mode->open();
	dup2(memory, NO_SUCH_DESCRIPTOR);
	ask_for_library(boot_page, NO_SUCH_DESCRIPTOR);
	swap(NO_SUCH_DESCRIPTOR, memory, other);
}

static void reuse_session(const struct mode *mode)
{
	struct hostile_session session = make_session(TOTAL_BYTES, SOUND_SEALS);
	int other = mode->open();
	dup2(session.fd, NO_SUCH_DESCRIPTOR);
	offer_session(boot_page, NO_SUCH_DESCRIPTOR);
	swap(NO_SUCH_DESCRIPTOR, session.fd, other);
	serve(&session, NULL);
}

// Wants the library again and again, each time in a new memory file.
static void ask_for_ever(const struct mode *mode)
{
	for (;;) {
		ask_for_library(boot_page, mode->open());
		if (!await_stage(boot_page, NFP_BOOT_LIBRARY_FILLED))
			return;
	}
}

static void open_session(const struct mode *mode)
{
	struct hostile_session session = make_session(mode->bytes, mode->seals);
	session.count = mode->open;
	if (mode->spoil)
		mode->spoil(&session);
	offer_session(boot_page, session.fd);
	serve(&session, mode->meanwhile);
}

// As the helper thread would: the library first.
static void behave(const struct mode *mode)
{
	library_file = name_of_library();
	ask_for_library(boot_page, library_file);
	if (await_stage(boot_page, NFP_BOOT_LIBRARY_FILLED))
		open_session(mode);
}

// ---- nonsense in the session's memory -----------------------------------------------------------------------------

static void wrong_sizes(struct hostile_session *session)
{
	session->header->ring_bytes = session->header->ring_stride = 128 << 10;
}

static void add_arena(struct hostile_session *session, uint64_t address, uint64_t offset, uint64_t bytes, uint64_t used)
{
	struct nfp_session_header *header = session->header;
	header->arena[header->arenas].address = address;
	header->arena[header->arenas].offset = offset;
	header->arena[header->arenas].bytes = bytes;
	header->arena[header->arenas].used = used;
	header->arenas++;
	header->arena_used = 4 << 20;
}

static uint64_t near_code(void)
{
	return ((uint64_t)(uintptr_t)step & ~0xfffffull) - (64 << 20);
}

static void unaligned_arena(struct hostile_session *session)
{
	add_arena(session, near_code(), NFP_ARENA_OFFSET + 77, 1 << 20, 0);
}

static void overlapping_arenas(struct hostile_session *session)
{
	add_arena(session, near_code(), NFP_ARENA_OFFSET, 1 << 20, 0);
	add_arena(session, near_code() + (1 << 20), NFP_ARENA_OFFSET + (1 << 19), 1 << 20, 0);
}

static void arena_over_header(struct hostile_session *session)
{
	add_arena(session, near_code(), 4096, 1 << 20, 0);
}

static void overfull_arena(struct hostile_session *session)
{
	add_arena(session, near_code(), NFP_ARENA_OFFSET, 1 << 20, ~0ull - 64);
}

static void endless_arena(struct hostile_session *session)
{
	add_arena(session, near_code(), NFP_ARENA_OFFSET, ~0ull - NFP_ARENA_OFFSET - 4095, 0);
}

// It says that it has mapped it, and has not.
static void unmapped_arena(struct hostile_session *session)
{
	add_arena(session, near_code(), NFP_ARENA_OFFSET, 1 << 20, 0);
}

static void many_arenas(struct hostile_session *session)
{
	session->header->arenas = 1000000;
}

static void much_arena(struct hostile_session *session)
{
	session->header->arena_used = ~0ull - 4095;
}

static void full_tables(struct hostile_session *session)
{
	session->header->threads = session->header->probes = 0xffffffff;
}

// Counters that no thread can have.
static void absurd_counts(struct hostile_session *session)
{
	struct nfp_thread_shared *threads = (void *)(session->memory + NFP_THREAD_TABLE_OFFSET);
	session->header->threads = 4;
	for (int i = 0; i < 4; i++) {
		memset(&threads[i], 0xff, sizeof(threads[i]));
		threads[i].tid = (uint32_t)getpid();
		threads[i].state = NFP_THREAD_USED;
	}
}

static uint64_t random_word(void)
{
	static uint64_t state = 88172645463325252ull;
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

// Everything in the header that the trampolines and the mailbox do not need changes all the time.
static void flip_header(struct hostile_session *session)
{
	static volatile uint64_t *words, *arenas;
	struct nfp_session_header *header = session->header;
	words = (void *)header;
	for (int i = 0; i < 50; i++) {
		uint64_t bits = random_word();
		header->ring_bytes = header->ring_stride = header->total_bytes = bits;
		header->epoch = header->threads = header->probes = header->arenas = (uint32_t)bits;
		header->arena_used = bits & 1 ? bits : 0;
		header->kept_address = bits;
		header->calibrated_calls = header->counted_calls = bits & 3 ? 0 : (uint32_t)bits;
		header->calibrated_inside_ticks = header->calibrated_added_ticks = (uint32_t)(bits >> 32);
		arenas = (void *)header->arena;
		arenas[bits % (sizeof(header->arena) / 8)] = bits >> (bits & 31);
		words[0] = bits & 1 ? NFP_SESSION_MAGIC : bits;
	}
	header->ring_bytes = header->ring_stride = RING_BYTES;
	header->total_bytes = TOTAL_BYTES;
	header->magic = NFP_SESSION_MAGIC;
}

static void truncate_session(struct hostile_session *session)
{
	uint64_t bytes = random_word() & 1 ? 0 : TOTAL_BYTES;
	if (ftruncate(session->fd, (off_t)bytes) != 0 || bytes == 0)
		_exit(9); // what is mapped here is gone, too
}

// In a process of its own: this one would get SIGBUS itself.
static void truncate_soon(struct hostile_session *session)
{
	if (fork() != 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;; usleep(50))
		if (session->header->request != 0)
			truncate_session(session);
}

// ---- counters ------------------------------------------------------------------------------------------------------

static int connect_elsewhere(void) // to a socket of another user's service
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	return connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ? fd : -errno;
}

static int full_socket(void)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
		return -errno;
	while (send(ends[0], "x", 1, MSG_DONTWAIT) == 1)
		;
	return ends[0];
}

#define SOUND .seals = SOUND_SEALS, .bytes = TOTAL_BYTES
static const struct mode modes[] = {
    {"behaves", behave, SOUND},
    {"library-read-only", give_library, open_read_only},
    {"library-path-only", give_library, open_path_only},
    {"library-device", give_library, open_device},
    {"library-nothing", give_library, open_nothing},
    {"library-negative", give_library, open_negative},
    {"library-pipe", give_library, open_pipe},
    {"library-socket", give_library, open_socket},
    {"library-unlinked", give_library, open_unlinked},
    {"library-memory-read-only", give_library, open_memory_read_only},
    {"library-memory-path-only", give_library, open_memory_path_only},
    {"library-memory-full", give_library, open_memory_full},
    {"library-memory-sealed", give_library, open_memory_sealed},
    {"library-memory-appending", give_library, open_memory_appending},
    {"library-memory-mapped", give_library, open_memory_mapped},
    {"library-memory-other", give_library, open_memory_other},
    {"library-reused", reuse_library, open_read_only},
    {"library-for-ever", ask_for_ever, name_of_library},
    {"session-read-only", give_session, open_read_only},
    {"session-path-only", give_session, open_path_only},
    {"session-device", give_session, open_device},
    {"session-nothing", give_session, open_nothing},
    {"session-negative", give_session, open_negative},
    {"session-pipe", give_session, open_pipe},
    {"session-socket", give_session, open_socket},
    {"session-unlinked", give_session, open_unlinked},
    {"session-memory-read-only", give_session, open_session_read_only},
    {"session-memory-path-only", give_session, open_session_path_only},
    {"session-memory-other", give_session, open_memory_other},
    {"session-reused", reuse_session, open_read_only},
    {"session-unsealed", open_session, .bytes = TOTAL_BYTES, .spoil = truncate_soon},
    {"session-shrinks", open_session, .bytes = TOTAL_BYTES, .seals = F_SEAL_GROW | F_SEAL_SEAL},
    {"session-grows", open_session, .bytes = TOTAL_BYTES, .seals = F_SEAL_SHRINK | F_SEAL_SEAL},
    {"session-short", open_session, .bytes = 4096, .seals = SOUND_SEALS},
    {"session-empty", open_session, .bytes = 0, .seals = SOUND_SEALS},
    {"session-odd-size", open_session, .bytes = TOTAL_BYTES + 4096, .seals = SOUND_SEALS},
    {"session-wrong-sizes", open_session, SOUND, .spoil = wrong_sizes},
    {"session-flips", open_session, SOUND, .meanwhile = flip_header},
    {"session-full-tables", open_session, SOUND, .spoil = full_tables},
    {"session-absurd-counts", open_session, SOUND, .spoil = absurd_counts},
    {"arena-unaligned", open_session, SOUND, .spoil = unaligned_arena},
    {"arena-overlapping", open_session, SOUND, .spoil = overlapping_arenas},
    {"arena-over-header", open_session, SOUND, .spoil = arena_over_header},
    {"arena-overfull", open_session, SOUND, .spoil = overfull_arena},
    {"arena-endless", open_session, SOUND, .spoil = endless_arena},
    {"arena-unmapped", open_session, SOUND, .spoil = unmapped_arena},
    {"arena-many", open_session, SOUND, .spoil = many_arenas},
    {"arena-much", open_session, SOUND, .spoil = much_arena},
    {"counters-file", open_session, open_read_only, SOUND},
    {"counters-device", open_session, open_device, SOUND},
    {"counters-pipe", open_session, open_pipe, SOUND},
    {"counters-stream", open_session, open_socket, SOUND},
    {"counters-nothing", open_session, open_nothing, SOUND},
    {"counters-elsewhere", open_session, connect_elsewhere, SOUND},
    {"counters-full", open_session, full_socket, SOUND},
    {NULL},
};

static void *drive(void *unused)
{
	for (;;) {
		while (!boot_page)
			pause_briefly();
		mode->act(mode);
		boot_page = NULL;
	}
	return unused;
}

// ---- becoming hostile ----------------------------------------------------------------------------------------------

// Runs on a thread that the monitor has stopped anywhere.
static int own_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
	(void)thread, (void)attributes, (void)start;
	boot_page = argument;
	return 0;
}

static void replace_pthread_create(void)
{
	uint8_t *place = dlsym(RTLD_DEFAULT, "pthread_create");
	uint8_t jump[14] = {0xff, 0x25, 0, 0, 0, 0};
	void *to = (void *)own_pthread_create;
	uint8_t *page = (uint8_t *)((uintptr_t)place & ~4095ul);
	memcpy(jump + 6, &to, sizeof(to));
	if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
		_exit(5);
	memcpy(place, jump, sizeof(jump));
}

static const char *turn(long unused)
{
	pthread_t thread;
	(void)unused;
	if (geteuid() == 0 && (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY)))
		return "still root";
	prctl(PR_SET_DUMPABLE, 1);
	if (pthread_create(&thread, NULL, drive, NULL) != 0)
		return "no thread";
	replace_pthread_create();
	return "right";
}

static const char *call_step(long count)
{
	for (long i = 0; i < count; i++)
		if (step(i) != i + 1)
			return "wrong";
	return "right";
}

static const char *fork_children(long count)
{
	static char answer[CHILDREN_MAX * 12];
	int length = 0;
	for (long i = 0; i < count && child_count < CHILDREN_MAX; i++) {
		pid_t child = fork();
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (i == 0)
				turn(0);
			for (;; usleep(1000))
				sink = step(sink);
		}
		children[child_count++] = child;
		length += sprintf(answer + length, "%s%d", i ? " " : "", (int)child);
	}
	return answer;
}

static const char *show_library(long unused)
{
	static char answer[64];
	struct stat status = {.st_size = -1};
	(void)unused;
	fstat(library_file, &status);
	snprintf(answer, sizeof(answer), "%ld %d", (long)status.st_size, fcntl(library_file, F_GET_SEALS));
	return answer;
}

static const char *end(long unused)
{
	int wrong = 0, status;
	(void)unused;
	for (int i = 0; i < child_count; i++) {
		kill(children[i], SIGTERM);
		wrong += waitpid(children[i], &status, 0) != children[i] || !WIFSIGNALED(status) || WTERMSIG(status) != SIGTERM;
	}
	return wrong ? "wrong" : "right";
}

static int find_mode(const char *name)
{
	for (mode = modes; mode->name && strcmp(mode->name, name) != 0;)
		mode++;
	return mode->name != NULL;
}

__attribute__((constructor)) static void preload(void)
{
	const char *name = getenv("HOSTILE_MODE");
	path = getenv("HOSTILE_PATH");
	if (name && find_mode(name))
		turn(0);
}

int main(int argc, char **argv)
{
	static const struct command commands[] = {
	    {"turn", turn}, {"fork", fork_children}, {"step", call_step}, {"kept", show_library},
	    {"end", end},   {NULL, NULL},
	};
	if (argc < 2 || !find_mode(argv[1]))
		return 2;
	path = argc > 2 ? argv[2] : "/etc/hostname";
	return obey(commands);
}
