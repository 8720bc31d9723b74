// SPDX-License-Identifier: Apache-2.0
// The interface of gdb and lldb for just-in-time compilers (gdb manual, "JIT Compilation Interface"): a debugger
// that attaches finds __jit_debug_descriptor by name and reads a list of ELF objects from the target's memory;
// one that is attached already stops at __jit_debug_register_code. The objects describe the code in arenas
// (otel_nfprobe/probes/codemap.py).
//
// Objects are never taken away, because trampolines are not: threads sleep in them across a detach.
#define _GNU_SOURCE
#include "jit.h"
#include "finder.h"
#include "library.h"
#include "unwinder.h"
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define CHUNK_BYTES 4096
#define JIT_VERSION 1
#define JIT_REGISTER 1

struct jit_code_entry {
	struct jit_code_entry *next, *previous;
	uint64_t address; // of an ELF object in memory
	uint64_t bytes;
};

struct jit_descriptor {
	uint32_t version;
	uint32_t action;
	struct jit_code_entry *relevant;
	struct jit_code_entry *first;
};

struct entry {
	struct jit_code_entry debugger;
	struct nfp_dynamic_info unwinder;
	struct nfp_findable finder;
};

// Protected: debuggers look these names up in each library, and the target may have its own (LLVM has).
__attribute__((visibility("protected"))) struct jit_descriptor __jit_debug_descriptor = {JIT_VERSION, 0, NULL,
                                                                                         NULL};
__attribute__((visibility("protected"), noinline, used)) void __jit_debug_register_code(void)
{
	__asm__ volatile("" ::: "memory");
}

static struct entry *free_entries;
static size_t free_count;

static struct entry *new_entry(void)
{
	if (free_count == 0) {
		long chunk = nfp_syscall6(SYS_mmap, 0, CHUNK_BYTES, PROT_READ | PROT_WRITE,
		                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (chunk < 0 && chunk > -4096)
			return NULL;
		free_entries = (struct entry *)chunk;
		free_count = CHUNK_BYTES / sizeof(*free_entries);
	}
	free_count--;
	return free_entries++;
}

// A debugger may read the list at any moment: each store leaves a whole list behind.
static void tell_debugger(struct jit_code_entry *entry, uint64_t address, uint64_t bytes)
{
	entry->address = address;
	entry->bytes = bytes;
	entry->next = __jit_debug_descriptor.first;
	if (entry->next)
		entry->next->previous = entry;
	__atomic_store_n(&__jit_debug_descriptor.first, entry, __ATOMIC_RELEASE);
	__jit_debug_descriptor.relevant = entry;
	__jit_debug_descriptor.action = JIT_REGISTER;
	__jit_debug_register_code();
	__jit_debug_descriptor.action = 0;
}

int nfp_jit_register(uint64_t address, uint64_t bytes)
{
	struct entry *entry = new_entry();
	if (!entry)
		return -ENOMEM;
	tell_debugger(&entry->debugger, address, bytes);
	nfp_unwinder_add(&entry->unwinder, address);
	nfp_finder_add(&entry->finder, address);
	return 0;
}

// /proc/PID/task/TID/fd/N becomes /proc/PID/fd/N: the thread that has loaded the library ends. Nothing else is
// renamed. The new name is shorter, so it fits.
static void leave_thread_out(char *name)
{
	char shorter[64];
	char before[64], after[64]; // what the links lead to: the memory file's name, with its build id
	const char *task = strstr(name, "/task/"), *descriptor = task ? strstr(task, "/fd/") : NULL;
	if (strncmp(name, "/proc/", 6) != 0 || !descriptor)
		return;
	snprintf(shorter, sizeof(shorter), "%.*s%s", (int)(task - name), name, descriptor);
	long length = nfp_read_link(name, before, sizeof(before));
	if (length > 0 && nfp_read_link(shorter, after, sizeof(after)) == length &&
	    memcmp(before, after, (size_t)length) == 0)
		strcpy(name, shorter);
}

// In glibc and musl dlpi_name is the loader's own copy of the name, in its heap.
static int rename_own(struct dl_phdr_info *info, size_t info_bytes, void *unused)
{
	(void)info_bytes, (void)unused;
	uint64_t own = (uint64_t)(uintptr_t)rename_own - info->dlpi_addr;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		if (part->p_type == PT_LOAD && own - part->p_vaddr < part->p_memsz)
			return leave_thread_out((char *)(uintptr_t)info->dlpi_name), 1;
	}
	return 0;
}

void nfp_jit_name_library(void)
{
	dl_iterate_phdr(rename_own, NULL);
}
