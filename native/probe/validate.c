// SPDX-License-Identifier: Apache-2.0
// Programs that a person described are not trusted: what an argument is said to point to may be a number.
//
//   every call      the words behind an argument (a count, an array of pointers) are read where memory is known
//                   to be readable: the kernel was asked for that page, once
//   first 64 calls  with packets: each pointer, the fields behind it and the packet's first and last byte are
//                   read by the kernel, and lengths must fit; nothing is written before all of them did
//
// What does not fit switches the program off for the whole session, with a verdict for the monitor. Nothing here
// can fault.
#include "describe.h"
#include "arch/arch.h"

enum {
	PROCESS_VM_READV = 310,
	LENGTH_MAX = 1 << 18, // a whole segment offload is 64 KiB
	PIECES_MAX = 6, // fields of a buffer
};

uint64_t nfp_known_pages[NFP_KNOWN_PAGES];

// Pieces of this process's memory that are copied as the kernel sees it, by one system call.
struct pieces {
	struct {
		void *base;
		uint64_t bytes;
	} to[PIECES_MAX], from[PIECES_MAX];
	uint64_t count, bytes;
};

static void add_piece(struct pieces *pieces, void *to, uint64_t address, uint64_t bytes)
{
	pieces->to[pieces->count].base = to;
	pieces->from[pieces->count].base = (void *)(uintptr_t)address;
	pieces->to[pieces->count].bytes = pieces->from[pieces->count].bytes = bytes;
	pieces->count++;
	pieces->bytes += bytes;
}

// Returns whether all of them are there.
static int copy_pieces(const struct pieces *pieces)
{
	return nfp_syscall6(PROCESS_VM_READV, nfp_library.pid, (long)pieces->to, (long)pieces->count,
	                    (long)pieces->from, (long)pieces->count, 0) == (long)pieces->bytes;
}

int nfp_copy_readable(void *out, uint64_t address, uint64_t bytes)
{
	struct pieces pieces;
	pieces.count = pieces.bytes = 0;
	add_piece(&pieces, out, address, bytes);
	return copy_pieces(&pieces);
}

static int is_known(uint64_t page)
{
	uint64_t *known = &nfp_known_pages[page % NFP_KNOWN_PAGES];
	uint8_t byte;
	if (__atomic_load_n(known, __ATOMIC_RELAXED) == page)
		return page != 0;
	if (!nfp_copy_readable(&byte, page << NFP_PAGE_SHIFT, 1))
		return 0;
	__atomic_store_n(known, page, __ATOMIC_RELAXED);
	return 1;
}

int nfp_are_readable(uint64_t address, uint64_t bytes)
{
	uint64_t last = address + bytes - 1;
	if (!bytes)
		return 1;
	if (last < address)
		return 0;
	for (uint64_t page = address >> NFP_PAGE_SHIFT; page <= last >> NFP_PAGE_SHIFT; page++)
		if (!is_known(page))
			return 0;
	return 1;
}

int nfp_switch_off(struct nfp_program *program, enum nfp_verdict verdict, uint64_t offence)
{
	uint16_t none = NFP_VERDICT_NONE;
	if (!__atomic_load_n(&program->offence, __ATOMIC_RELAXED))
		__atomic_store_n(&program->offence, offence, __ATOMIC_RELAXED);
	__atomic_compare_exchange_n(&program->verdict, &none, (uint16_t)verdict, 0, __ATOMIC_RELEASE,
	                            __ATOMIC_RELAXED);
	return 0;
}

static int is_off(const struct nfp_program *program)
{
	return __atomic_load_n(&program->verdict, __ATOMIC_RELAXED) != NFP_VERDICT_NONE;
}

uint32_t nfp_count_in_memory(struct nfp_program *program, uint64_t structure)
{
	uint64_t count = 0, address = structure + program->count_offset;
	if (is_off(program) || !structure)
		return 0;
	if (!nfp_is_readable(address, program->count_width)) {
		nfp_switch_off(program, NFP_VERDICT_COUNT_UNREADABLE, address);
		return 0;
	}
	const void *place = (const void *)(uintptr_t)address;
	if (program->count_width == 2)
		__builtin_memcpy(&count, place, 2);
	else if (program->count_width == 4)
		__builtin_memcpy(&count, place, 4);
	else
		__builtin_memcpy(&count, place, 8);
	if (count > program->packets_max) {
		nfp_switch_off(program, NFP_VERDICT_COUNT_TOO_LARGE, count);
		return 0;
	}
	return (uint32_t)count;
}

int nfp_view_copy(const struct nfp_program *program, uint64_t buffer, struct nfp_view *view)
{
	uint16_t offset = 0;
	uint32_t segment = 0;
	uint64_t flags = UINT64_MAX;
	struct pieces pieces;
	pieces.count = pieces.bytes = 0;
	*view = (struct nfp_view){.buffer = buffer};
	add_piece(&pieces, &view->data, buffer + program->data_pointer, sizeof(view->data));
	add_piece(&pieces, &view->length, buffer + program->length, program->length_width == 4 ? 4 : 2);
	add_piece(&pieces, &segment, buffer + program->segment_length, program->segment_width == 4 ? 4 : 2);
	if (program->data_offset != NFP_NO_OFFSET)
		add_piece(&pieces, &offset, buffer + program->data_offset, sizeof(offset));
	if (program->arrival != NFP_NO_OFFSET)
		add_piece(&pieces, &view->arrival, buffer + program->arrival, sizeof(view->arrival));
	if (program->arrival != NFP_NO_OFFSET && program->arrival_flags != NFP_NO_OFFSET)
		add_piece(&pieces, &flags, buffer + program->arrival_flags, sizeof(flags));
	if (!copy_pieces(&pieces))
		return 0;
	view->stamped = program->arrival != NFP_NO_OFFSET && flags >> (program->arrival_bit & 63) & 1;
	view->data += offset;
	view->readable = segment;
	return 1;
}

// Whether the first and the last of the bytes are there.
static int are_there(uint64_t address, uint64_t bytes)
{
	uint8_t ends[2];
	struct pieces pieces;
	pieces.count = pieces.bytes = 0;
	add_piece(&pieces, &ends[0], address, 1);
	add_piece(&pieces, &ends[1], address + bytes - 1, 1);
	return copy_pieces(&pieces);
}

// As above for a buffer that is named by a number: its memory can be read, and its bytes must be in it.
static int numbered_fits(struct nfp_program *program, uint64_t buffer, int *proves)
{
	struct nfp_view view;
	nfp_numbered_view(program, buffer, (const uint8_t *)(uintptr_t)buffer, &view);
	if (view.length > LENGTH_MAX)
		return nfp_switch_off(program, NFP_VERDICT_LENGTH_WRONG, view.length);
	if (!view.data)
		return nfp_switch_off(program, NFP_VERDICT_PACKET_UNREADABLE, buffer);
	*proves &= view.readable != 0;
	return 1;
}

// Whether it looks like a packet. A packet without a byte proves nothing.
static int packet_fits(struct nfp_program *program, uint64_t buffer, int *proves)
{
	struct nfp_view view;
	if (program->number_shift)
		return numbered_fits(program, buffer, proves);
	if (!nfp_view_copy(program, buffer, &view))
		return nfp_switch_off(program, NFP_VERDICT_PACKET_UNREADABLE, buffer);
	if (view.length > LENGTH_MAX || view.readable > view.length)
		return nfp_switch_off(program, NFP_VERDICT_LENGTH_WRONG,
		                      view.length > LENGTH_MAX ? view.length : view.readable);
	*proves &= view.readable != 0;
	if (view.readable && !are_there((uint64_t)(uintptr_t)view.data, view.readable))
		return nfp_switch_off(program, NFP_VERDICT_PACKET_UNREADABLE, buffer);
	return 1;
}

int nfp_is_plausible(struct nfp_program *program, uint64_t pointers, uint32_t count)
{
	if (is_off(program))
		return 0;
	uint32_t described = count < program->packets_max ? count : program->packets_max;
	int single = program->pointers_single;
	if (!single && !nfp_is_readable(pointers, described * sizeof(uint64_t)))
		return nfp_switch_off(program, NFP_VERDICT_POINTERS_UNREADABLE, pointers);
	if (!count || nfp_is_proven(program))
		return 1;
	const uint64_t *buffers = (const uint64_t *)(uintptr_t)pointers;
	int proves = 1;
	for (uint32_t i = 0; i < described && (!single || !i); i++)
		if (!packet_fits(program, single ? pointers : buffers[i], &proves))
			return 0;
	if (proves)
		__atomic_fetch_add(&program->proven, 1, __ATOMIC_RELAXED);
	return 1;
}
