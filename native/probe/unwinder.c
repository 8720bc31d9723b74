// SPDX-License-Identifier: Apache-2.0
// libunwind (its soname is libunwind.so.8) knows the code of loaded files and, in a list of its own, code that
// was made at run time. Programs use it for stack dumps and, when it comes before libgcc_s, for exceptions.
// One that is loaded after the probes does not learn of them.
#define _GNU_SOURCE
#include "unwinder.h"
#include "arch/arch.h"
#include <dlfcn.h>
#include <elf.h>
#include <stddef.h>

#define LIBRARY "libunwind.so.8"
#define FORMAT_DYNAMIC 0
#define FORMAT_REMOTE_TABLE 2
#define TABLE_OFFSET 12 // in .eh_frame_hdr, behind encodings, pointer and count
#define ANSWER_WORDS 32 // more than unw_proc_info_t has
#define MARK 0x6e6670726f626531 // an address that no handler has

typedef void change_list(struct nfp_dynamic_info *);
typedef int look_up(void *space, uint64_t address, uint64_t *answer, void *argument);

// libunwind before 1.6 has no load_offset, so that all that follows lies elsewhere. It is asked about a piece
// of code whose handler's address stands where version 1.6 looks for it.
static int has_known_layout(void *library, change_list *add)
{
	static const char piece[16];
	static struct nfp_dynamic_info question;
	static int is_known = -1;
	void **space = dlsym(library, NFP_UNWINDER_SYMBOLS "local_addr_space");
	look_up *look = NULL;
	change_list *take_away = NULL;
	*(void **)&look = dlsym(library, NFP_UNWINDER_SYMBOLS "get_proc_info_by_ip");
	*(void **)&take_away = dlsym(library, "_U_dyn_cancel");
	if (is_known >= 0 || !space || !look || !take_away)
		return is_known > 0;
	uint64_t answer[ANSWER_WORDS] = {0};
	question.start = (uint64_t)(uintptr_t)piece;
	question.end = question.start + sizeof(piece);
	question.format = FORMAT_DYNAMIC;
	question.base = MARK; // here: the handler
	add(&question);
	look(*space, question.start, answer, NULL);
	take_away(&question);
	is_known = 0;
	for (int i = 0; i < ANSWER_WORDS; i++)
		is_known |= answer[i] == MARK;
	return is_known;
}

void nfp_unwinder_add(struct nfp_dynamic_info *info, uint64_t object)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
	change_list *add = NULL;
	if (library)
		*(void **)&add = dlsym(library, "_U_dyn_register");
	if (!add || !has_known_layout(library, add))
		return;
	const Elf64_Ehdr *header = (const Elf64_Ehdr *)object;
	const Elf64_Shdr *sections = (const Elf64_Shdr *)(object + header->e_shoff);
	const Elf64_Shdr *text = &sections[1], *index = &sections[3]; // the order of SECTION_NAMES
	info->start = text->sh_addr;
	info->end = text->sh_addr + text->sh_size;
	info->format = FORMAT_REMOTE_TABLE;
	info->base = index->sh_addr;
	info->table = index->sh_addr + TABLE_OFFSET;
	info->entries = (index->sh_size - TABLE_OFFSET) / 8;
	add(info);
}
