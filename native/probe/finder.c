// SPDX-License-Identifier: Apache-2.0
// LLVM's libunwind, and any unwinder that is linked into a program, has no list that code made at run time could be
// added to: it asks the dynamic linker. In modules with such an unwinder the GOT slots of the two functions that it
// asks lead here (otel_nfprobe/probes/unwinders.py), where arenas are added to the answer. Otherwise exceptions that pass
// through a trampoline end the program.
#define _GNU_SOURCE
#include "finder.h"
#include <dlfcn.h>
#include <stddef.h>

typedef int take_object(struct dl_phdr_info *info, size_t info_bytes, void *argument);

// struct dl_find_object of glibc 2.35 and later, on 64-bit processors.
struct found {
	unsigned long long flags;
	uint64_t start, end;
	void *link_map;
	uint64_t index; // .eh_frame_hdr
	unsigned long long reserved[7];
};

static struct nfp_findable *first;
static int (*find_object)(void *address, struct found *found);

void nfp_finder_add(struct nfp_findable *code, uint64_t object)
{
	const Elf64_Ehdr *header = (const Elf64_Ehdr *)object;
	const Elf64_Shdr *sections = (const Elf64_Shdr *)(object + header->e_shoff);
	const Elf64_Shdr *text = &sections[1], *index = &sections[3]; // the order of SECTION_NAMES
	code->start = text->sh_addr;
	code->end = text->sh_addr + text->sh_size;
	code->headers[0] = (ElfW(Phdr)){
	    .p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_vaddr = code->start, .p_memsz = text->sh_size};
	code->headers[1] = (ElfW(Phdr)){
	    .p_type = PT_GNU_EH_FRAME, .p_flags = PF_R, .p_vaddr = index->sh_addr, .p_memsz = index->sh_size};
	if (!find_object)
		*(void **)&find_object = dlsym(RTLD_DEFAULT, "_dl_find_object");
	code->next = first;
	__atomic_store_n(&first, code, __ATOMIC_RELEASE); // a thread may unwind at any moment
}

struct walk {
	take_object *take;
	void *argument;
	int is_told; // of arenas
};

static int tell(const struct walk *walk, const struct dl_phdr_info *real)
{
	int answer = 0;
	for (struct nfp_findable *code = __atomic_load_n(&first, __ATOMIC_ACQUIRE); code && !answer;
	     code = code->next) {
		struct dl_phdr_info info = {.dlpi_name = "nfprobe-arena",
		                            .dlpi_phdr = code->headers,
		                            .dlpi_phnum = 2,
		                            .dlpi_adds = real->dlpi_adds,
		                            .dlpi_subs = real->dlpi_subs};
		answer = walk->take(&info, sizeof(info), walk->argument);
	}
	return answer;
}

// Arenas come behind the program, which everybody expects first, so that it is done under the dynamic linker's lock:
// unwinders keep what they found without one of their own.
static int pass_on(struct dl_phdr_info *info, size_t info_bytes, void *argument)
{
	struct walk *walk = argument;
	int answer = walk->take(info, info_bytes, walk->argument);
	if (answer || walk->is_told)
		return answer;
	walk->is_told = 1;
	return tell(walk, info);
}

__attribute__((visibility("protected"), used)) int nfprobe_iterate_phdr(take_object *take, void *argument)
{
	struct walk walk = {take, argument, 0};
	return dl_iterate_phdr(pass_on, &walk);
}

__attribute__((visibility("protected"), used)) int nfprobe_find_object(void *address, struct found *found)
{
	uint64_t wanted = (uint64_t)(uintptr_t)address;
	for (struct nfp_findable *code = __atomic_load_n(&first, __ATOMIC_ACQUIRE); code; code = code->next) {
		if (wanted < code->start || wanted >= code->end)
			continue;
		if (find_object((void *)(uintptr_t)nfprobe_find_object, found) != 0)
			return -1;
		found->start = code->start;
		found->end = code->end;
		found->index = code->headers[1].p_vaddr;
		return 0;
	}
	return find_object(address, found);
}
