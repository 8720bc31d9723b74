// SPDX-License-Identifier: Apache-2.0
// A target that names threads of others: it writes a number of its caller's choice into the thread table of the session that
// measures it, where nobody has an entry, and into its own entry.
#define _GNU_SOURCE
#include "commands.h"
#include <stdint.h>
#include <unistd.h>
#include <x86intrin.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define THREADS_USED 48 // offsets of native/abi/session.h, which a hostile target knows as well
#define TABLE 8192
#define ENTRY_BYTES 256
#define EMPTY_ENTRIES_FROM 8
#define EMPTY_ENTRIES 16

NOINLINE long step(long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

static const char *work(long count)
{
	long x = 0;
	for (long i = 0; i < count; i++)
		x = step(x);
	return x == count ? "right" : "wrong";
}

static uint8_t *find_session(void)
{
	char line[512];
	unsigned long start = 0, end, offset;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof(line), maps)) {
		if (strstr(line, "memfd:nfprobe-session") &&
		    sscanf(line, "%lx-%lx rw-s %lx", &start, &end, &offset) == 3 && offset == 0)
			break;
		start = 0;
	}
	if (maps)
		fclose(maps);
	return (uint8_t *)start;
}

static void write_entry(uint8_t *entry, uint32_t tid)
{
	uint64_t now = __rdtsc();
	memcpy(entry + 4, &tid, 4);
	memcpy(entry + 8, &now, 8);
	*(uint32_t *)entry = 1;
}

static const char *name_other(long tid)
{
	uint8_t *session = find_session();
	if (!session)
		return "no session";
	uint32_t used = EMPTY_ENTRIES_FROM + EMPTY_ENTRIES;
	for (uint32_t i = EMPTY_ENTRIES_FROM; i < used; i++)
		write_entry(session + TABLE + i * ENTRY_BYTES, (uint32_t)tid);
	write_entry(session + TABLE, (uint32_t)tid);
	memcpy(session + THREADS_USED, &used, 4);
	return "done";
}

int main(void)
{
	static const struct command commands[] = {{"work", work}, {"name", name_other}, {NULL, NULL}};
	return obey(commands);
}
