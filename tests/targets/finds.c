// SPDX-License-Identifier: Apache-2.0
// Has an unwinder of its own, as far as its symbols tell, that asks the dynamic linker for the rows of an address, as
// LLVM's does. The command answers "right" when there are some for the place that calls.
#define _GNU_SOURCE
#include "commands.h"
#include <link.h>
#include <stdint.h>

struct wanted {
	uint64_t address;
	int objects, programs, found;
};

// A row covers the address: the table is sorted, in the form that all linkers write.
static int has_row(uint64_t table, uint64_t address)
{
	const uint8_t *encodings = (const uint8_t *)table;
	if (encodings[0] != 1 || encodings[2] != 3 || encodings[3] != 0x3b)
		return 0;
	uint32_t rows = *(const uint32_t *)(table + 8);
	const int32_t *row = (const int32_t *)(table + 12);
	uint32_t before = 0;
	while (before < rows && table + (uint64_t)(int64_t)row[2 * before] <= address)
		before++;
	if (!before)
		return 0;
	const uint32_t *frame = (const uint32_t *)(table + (uint64_t)(int64_t)row[2 * before - 1]);
	return frame[0] != 0; // its length: not the end mark
}

static int look(struct dl_phdr_info *info, size_t bytes, void *argument)
{
	struct wanted *wanted = argument;
	uint64_t table = 0;
	int is_inside = 0;
	(void)bytes;
	wanted->programs += wanted->objects++ == 0 && info->dlpi_name[0] == '\0';
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		uint64_t start = info->dlpi_addr + part->p_vaddr;
		if (part->p_type == PT_LOAD && wanted->address - start < part->p_memsz)
			is_inside = 1;
		if (part->p_type == PT_GNU_EH_FRAME)
			table = start;
	}
	wanted->found = is_inside && table && has_row(table, wanted->address);
	return is_inside;
}

// What makes a module one that unwinds by itself.
int _Unwind_RaiseException(void *exception);
int _Unwind_RaiseException(void *exception)
{
	return exception == NULL;
}

// Not probed.
static __attribute__((noinline, noclone)) const char *find_caller(void)
{
	struct wanted wanted = {.address = (uint64_t)(uintptr_t)__builtin_return_address(0) - 1};
	dl_iterate_phdr(look, &wanted);
	if (wanted.programs != 1)
		return "wrong: the program is not the first object";
	return wanted.found ? "right" : "wrong: nobody knows where the caller is";
}

// Probed: its relocated body is what calls.
__attribute__((noinline, noclone)) const char *find(long count)
{
	const char *answer = "wrong: asked nothing";
	for (long i = 0; i < count; i++)
		answer = find_caller();
	return answer;
}

int main(void)
{
	static const struct command commands[] = {{"find", find}, {NULL, NULL}};
	return obey(commands);
}
