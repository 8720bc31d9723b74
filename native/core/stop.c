// SPDX-License-Identifier: Apache-2.0
// The batched stop: seize every thread first (they keep running), then interrupt all, wait for all, look at
// all program counters, write, read back, let all go. The plan is made before; nothing here allocates or
// computes while the target stands still.
#include "stop.h"
#include "guard.h"
#include "ptrace.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

#define THREADS_MAX 8192

struct crowd {
	struct nfp_seized *threads;
	uint32_t count;
};

static int fail(struct nfp_stop *stop, int error, const char *what)
{
	snprintf(stop->message, sizeof(stop->message), "%s: %s", what, strerror(-error));
	return error;
}

static int is_known(const struct crowd *crowd, pid_t tid)
{
	for (uint32_t i = 0; i < crowd->count; i++)
		if (crowd->threads[i].tid == tid)
			return 1;
	return 0;
}

// A thread that has exited but is still listed (a main thread that called pthread_exit) cannot be seized.
static int is_dead(int32_t pid, pid_t tid)
{
	char path[64], line[512];
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, tid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 1;
	ssize_t bytes = read(fd, line, sizeof(line) - 1);
	close(fd);
	if (bytes <= 0)
		return 1;
	line[bytes] = 0;
	const char *state = strrchr(line, ')');
	return !state || state[1] != ' ' || state[2] == 'Z' || state[2] == 'X';
}

// Seizes threads that are not known. Returns how many, or -errno.
static int seize_new(struct nfp_stop *stop, struct crowd *crowd)
{
	char path[64];
	int found = 0;
	snprintf(path, sizeof(path), "/proc/%d/task", stop->pid);
	DIR *directory = opendir(path);
	if (!directory)
		return -errno;
	for (struct dirent *entry; (entry = readdir(directory));) {
		pid_t tid = atoi(entry->d_name);
		if (tid <= 0 || is_known(crowd, tid))
			continue;
		if (crowd->count == THREADS_MAX) {
			closedir(directory);
			return -E2BIG;
		}
		int error = nfp_seize(tid, &crowd->threads[crowd->count]);
		if (error == -ESRCH || (error && is_dead(stop->pid, tid)))
			continue;
		if (error) {
			closedir(directory);
			return error;
		}
		crowd->count++;
		found++;
	}
	closedir(directory);
	return found;
}

// Stops threads [from, count).
static int stop_from(struct crowd *crowd, uint32_t from, uint64_t deadline_ns)
{
	for (uint32_t i = from; i < crowd->count; i++)
		if (nfp_interrupt(&crowd->threads[i]) != 0)
			crowd->threads[i].gone = 1;
	for (uint32_t i = from; i < crowd->count; i++) {
		int error = nfp_wait_interrupted(&crowd->threads[i], deadline_ns);
		if (error && error != -ESRCH)
			return error;
	}
	return 0;
}

// Until a look at the list finds nobody new, all threads are stopped: only a running one makes another.
static int stop_all(struct nfp_stop *stop, struct crowd *crowd, uint64_t deadline_ns, uint64_t *start_ns)
{
	int found;
	do {
		found = seize_new(stop, crowd);
	} while (found > 0);
	if (found < 0)
		return fail(stop, found, "a thread of the target cannot be seized");
	*start_ns = nfp_now_ns();
	uint32_t from = 0;
	do {
		int error = stop_from(crowd, from, deadline_ns);
		if (error)
			return fail(stop, error, "a thread of the target did not stop");
		from = crowd->count;
		found = seize_new(stop, crowd);
	} while (found > 0);
	return found < 0 ? fail(stop, found, "a new thread of the target cannot be seized") : 0;
}

static void release_all(struct crowd *crowd)
{
	for (uint32_t i = 0; i < crowd->count; i++)
		if (!crowd->threads[i].stopped &&
		    !crowd->threads[i].gone) { // interrupted, but the wait gave up
			nfp_wait_interrupted(&crowd->threads[i], nfp_now_ns() + 100000000u);
		}
	for (uint32_t i = 0; i < crowd->count; i++)
		nfp_release(&crowd->threads[i]);
}

static const struct nfp_change *change_around(const struct nfp_change *changes, uint32_t count,
                                              uint64_t address)
{
	uint32_t low = 0, high = count; // changes are sorted by address
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (changes[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0)
		return NULL;
	const struct nfp_change *change = &changes[low - 1];
	return address > change->address && address < change->address + change->bytes ? change : NULL;
}

// Moves one thread out of the bytes that will change. Returns 1 moved, 0 not there, -EBUSY no place to go.
static int move_out(struct nfp_seized *thread, const struct nfp_change *changes, uint32_t count,
                    const struct nfp_move *moves)
{
	struct user_regs_struct *registers = &thread->registers;
	const struct nfp_change *change = change_around(changes, count, registers->rip);
	if (!change)
		return 0;
	for (uint32_t i = change->first_move; i < change->first_move + change->moves; i++)
		if (moves[i].from == registers->rip) {
			registers->rip = moves[i].to;
			return ptrace(PTRACE_SETREGS, thread->tid, 0, registers) == 0 ? 1 : -errno;
		}
	return -EBUSY;
}

static int move_all_out(struct nfp_stop *stop, struct crowd *crowd, const struct nfp_change *changes,
                        uint32_t count, const struct nfp_move *moves)
{
	for (uint32_t i = 0; i < crowd->count; i++) {
		if (crowd->threads[i].gone)
			continue;
		int moved = move_out(&crowd->threads[i], changes, count, moves);
		if (moved < 0)
			return fail(stop, moved, "a thread stands in the bytes to be changed");
		stop->moved += (uint32_t)moved;
	}
	return 0;
}

static int write_change(int memory, struct nfp_change *change)
{
	uint8_t found[32];
	off_t address = (off_t)change->address;
	change->failed = 0;
	if (pread(memory, found, change->bytes, address) != (ssize_t)change->bytes ||
	    memcmp(found, change->expected, change->bytes) != 0) {
		change->failed = 1;
		return 0;
	}
	if (pwrite(memory, change->replacement, change->bytes, address) != (ssize_t)change->bytes)
		return -errno;
	if (pread(memory, found, change->bytes, address) != (ssize_t)change->bytes ||
	    memcmp(found, change->replacement, change->bytes) != 0)
		change->failed = 2;
	return 0;
}

static int write_all(struct nfp_stop *stop, int memory, struct nfp_change *changes, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		int error = write_change(memory, &changes[i]);
		if (!error) {
			stop->changed += changes[i].failed == 0;
			continue;
		}
		while (i-- > 0) // as it was: the target must not be left half changed
			if (changes[i].failed == 0)
				pwrite(memory, changes[i].expected, changes[i].bytes,
				       (off_t)changes[i].address);
		stop->changed = 0;
		return fail(stop, error, "the target's code cannot be written through /proc/PID/mem");
	}
	return 0;
}

static int stop_and_change_here(struct nfp_stop *stop, struct nfp_change *changes, uint32_t count,
                                const struct nfp_move *moves, uint64_t patience_ns)
{
	char path[64];
	struct crowd crowd = {calloc(THREADS_MAX, sizeof(struct nfp_seized)), 0};
	snprintf(path, sizeof(path), "/proc/%d/mem", stop->pid);
	int memory = open(path, O_RDWR | O_CLOEXEC);
	stop->threads = stop->moved = stop->changed = 0;
	stop->stopped_ns = 0;
	if (memory < 0 || !crowd.threads) {
		int error = memory < 0 ? -errno : -ENOMEM;
		free(crowd.threads);
		if (memory >= 0)
			close(memory);
		return fail(stop, error, "opening the target's memory");
	}
	struct nfp_haste before;
	nfp_haste_begin(&before);
	uint64_t start_ns = nfp_now_ns();
	int error = stop_all(stop, &crowd, start_ns + patience_ns, &start_ns);
	if (!error)
		error = move_all_out(stop, &crowd, changes, count, moves);
	if (!error)
		error = write_all(stop, memory, changes, count);
	release_all(&crowd);
	stop->stopped_ns = nfp_now_ns() - start_ns;
	nfp_haste_end(&before);
	stop->threads = crowd.count;
	free(crowd.threads);
	close(memory);
	return error;
}

// Laid out in one block for the guard: this header, then the changes. The moves are only read.
struct work {
	struct nfp_stop stop;
	const struct nfp_move *moves;
	uint64_t patience_ns;
	uint32_t count;
	struct nfp_change changes[];
};

static int do_work(void *shared)
{
	struct work *work = shared;
	return stop_and_change_here(&work->stop, work->changes, work->count, work->moves, work->patience_ns);
}

int nfp_stop_and_change(struct nfp_stop *stop, struct nfp_change *changes, uint32_t count,
                        const struct nfp_move *moves, uint64_t patience_ns)
{
	size_t bytes = sizeof(struct work) + count * sizeof(*changes);
	struct work *work = malloc(bytes);
	if (!work)
		return fail(stop, -ENOMEM, "planning the change");
	*work = (struct work){.stop = *stop, .moves = moves, .patience_ns = patience_ns, .count = count};
	memcpy(work->changes, changes, count * sizeof(*changes));
	int error = nfp_guard(do_work, work, bytes);
	*stop = work->stop;
	memcpy(changes, work->changes, count * sizeof(*changes));
	free(work);
	return error;
}

int nfp_change_word(int32_t pid, uint64_t address, uint64_t expected, uint64_t replacement)
{
	char path[64];
	uint64_t found;
	if (address % 8 != 0)
		return -EINVAL;
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	int memory = open(path, O_RDWR | O_CLOEXEC);
	if (memory < 0)
		return -errno;
	int error = 0;
	// The kernel copies eight aligned bytes with one store: a thread sees the old pointer or the new one.
	if (pread(memory, &found, 8, (off_t)address) != 8)
		error = -errno;
	else if (found != expected)
		error = -EILSEQ;
	else if (pwrite(memory, &replacement, 8, (off_t)address) != 8)
		error = -errno;
	close(memory);
	return error;
}
