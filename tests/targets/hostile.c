// SPDX-License-Identifier: Apache-2.0
// A target that is hostile on purpose: its pthread_create starts no helper thread. A thread of its own talks to the
// monitor instead, in one of many ways: hostile MODE [PATH]. It drops root's rights first. As a library that is
// preloaded (HOSTILE_MODE, HOSTILE_PATH) it does so in any program.
// Modes that load are honest otherwise: the helper thread is the real one, and dlopen is the target's own.
//   turn      becomes hostile
//   fork N    forks N children that call `step` for ever, of which the first is hostile; answers their process ids
//   step N    calls step N times
//   kept      what the monitor wrote into the library's memory file: bytes, seals
//   end       the children end
#include "hostile_descriptors.h"
#include "hostile_library.h"
#include "hostile_memory.h"
#include "commands.h"
#include <dlfcn.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define NOBODY 65534
#define CHILDREN_MAX 16
#define STATUS 3

static int library_file = -1;
static pid_t children[CHILDREN_MAX];
static int child_count;
static volatile long sink;

static NOINLINE long step(long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

// ---- what is done with the monitor --------------------------------------------------------------------------------

static const struct mode *mode;

struct mode {
	const char *name;
	void (*act)(const struct mode *mode);
	int (*open)(void);
	int seals;
	int keeps_rights; // of root
	uint64_t bytes;
	void (*spoil)(struct hostile_session *session); // before the monitor sees it
	void (*meanwhile)(struct hostile_session *session);
	void *(*load)(const char *path, int flags); // instead of dlopen
	void (*begin)(const char *path); // before anybody attaches
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

// As the helper thread would, where it is not there yet. NULL: the monitor has given up.
static void *load_library(void)
{
	if (boot_page->entry)
		return (void *)boot_page->entry;
	library_file = name_of_library();
	ask_for_library(boot_page, library_file);
	return await_stage(boot_page, NFP_BOOT_LIBRARY_FILLED) ? entry_of(load_file(library_file)) : NULL;
}

static void reuse_session(const struct mode *mode)
{
	void *entry = load_library();
	if (!entry)
		return;
	struct hostile_session session = make_session(TOTAL_BYTES, SOUND_SEALS);
	session.header->helper_address = (uint64_t)entry;
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
	void *entry = load_library();
	if (!entry)
		return;
	struct hostile_session session = make_session(mode->bytes, mode->seals);
	session.count = mode->open;
	if (mode->bytes >= NFP_PROGRAM_OFFSET) // else there is no header to write to
		session.header->helper_address = (uint64_t)entry;
	if (mode->spoil)
		mode->spoil(&session);
	offer_session(boot_page, session.fd);
	if (mode->bytes >= NFP_PROGRAM_OFFSET)
		serve(&session, mode->meanwhile);
}

// ---- the modes ------------------------------------------------------------------------------------------------

#define SOUND .seals = SOUND_SEALS, .bytes = TOTAL_BYTES
static const struct mode modes[] = {
    {"behaves", open_session, SOUND},
    {"load-copy", .load = load_copy},
    {"load-patched", .load = load_patched},
    {"load-both", .load = load_both},
    {"named-as-library", open_session, SOUND, .begin = load_named},
    {"named-as-data", .load = load_given, .begin = map_named},
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
    {"session-scribbles", open_session, SOUND, .meanwhile = scribble_table},
    {"session-forges", open_session, SOUND, .meanwhile = forge_entry},
    {"session-absurd-counts", open_session, SOUND, .spoil = absurd_counts},
    {"arena-file-cut", open_session, SOUND, .spoil = cut_files, .keeps_rights = 1},
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
static int own_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                              void *argument)
{
	(void)thread, (void)attributes, (void)start;
	boot_page = argument;
	return 0;
}

static void replace(const char *function, void *to)
{
	uint8_t *place = dlsym(RTLD_DEFAULT, function);
	uint8_t jump[14] = {0xff, 0x25, 0, 0, 0, 0};
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
	if (geteuid() == 0 && !mode->keeps_rights &&
	    (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY)))
		return "still root";
	prctl(PR_SET_DUMPABLE, 1);
	if (mode->begin)
		mode->begin(path);
	if (mode->load) {
		replace("dlopen", (void *)mode->load);
		return "right";
	}
	if (pthread_create(&thread, NULL, drive, NULL) != 0)
		return "no thread";
	replace("pthread_create", (void *)own_pthread_create);
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
		wrong += waitpid(children[i], &status, 0) != children[i] || !WIFSIGNALED(status) ||
		         WTERMSIG(status) != SIGTERM;
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
	    {"turn", turn},      {"fork", fork_children},
	    {"step", call_step}, {"kept", show_library},
	    {"end", end},        {NULL, NULL},
	};
	if (argc < 2 || !find_mode(argv[1]))
		return 2;
	path = argc > 2 ? argv[2] : "/etc/hostname";
	return obey(commands);
}
