// SPDX-License-Identifier: Apache-2.0
#include "framerows.h"
#include "arch/arch.h"

#include <stdbool.h>

enum {
	REMEMBERED_MAX = 64,
	NUMBER_BITS_MAX = 28, // of an operand: no frame is larger
	SKIPPED_BYTES_MAX = 9, // of an operand that is not looked at
};
static const uint64_t ADDRESS_MAX = UINT64_C(1) << 62;

struct cfa {
	int32_t reg;
	int32_t offset;
};

struct machine {
	const uint8_t *program;
	uint32_t bytes;
	uint32_t position;
	struct cfa cfa;
	struct cfa remembered[REMEMBERED_MAX];
	uint32_t remembered_count;
	int64_t *rows;
	int count;
};

// A little-endian number of so many bytes, or -1.
static int64_t take(struct machine *machine, uint32_t bytes)
{
	if (bytes > machine->bytes - machine->position)
		return -1;
	int64_t value = 0;
	for (uint32_t index = 0; index < bytes; index++)
		value |= (int64_t)machine->program[machine->position + index] << (8 * index);
	machine->position += bytes;
	return value;
}

// A ULEB128 number, or -1.
static int32_t take_number(struct machine *machine)
{
	int32_t value = 0;
	for (int shift = 0; shift < NUMBER_BITS_MAX; shift += 7) {
		int64_t byte = take(machine, 1);
		if (byte < 0)
			return -1;
		value |= (int32_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return value;
	}
	return -1;
}

static bool skip_number(struct machine *machine)
{
	for (int count = 0; count < SKIPPED_BYTES_MAX; count++) {
		int64_t byte = take(machine, 1);
		if (byte < 0)
			return false;
		if (!(byte & 0x80))
			return true;
	}
	return false;
}

// The rule holds from the address on. A row that says the same as the one before is left out.
static bool emit(struct machine *machine, uint64_t address)
{
	if (machine->count) {
		const int64_t *last = machine->rows + (machine->count - 1) * NFP_FRAME_ROW_WORDS;
		if (last[1] == machine->cfa.reg && last[2] == machine->cfa.offset)
			return true;
		if (last[0] == (int64_t)address)
			machine->count--;
	}
	if (machine->count >= NFP_FRAME_ROWS_MAX)
		return false;
	int64_t *row = machine->rows + machine->count * NFP_FRAME_ROW_WORDS;
	row[0] = (int64_t)address;
	row[1] = machine->cfa.reg;
	row[2] = machine->cfa.offset;
	machine->count++;
	return true;
}

static bool skip_block(struct machine *machine)
{
	int32_t bytes = take_number(machine);
	if (bytes < 0 || (uint32_t)bytes > machine->bytes - machine->position)
		return false;
	machine->position += (uint32_t)bytes;
	return true;
}

// An expression for the CFA: of a function that aligns its stack, the word at frame pointer + offset.
static bool set_expression(struct machine *machine)
{
	enum { BYTES = 3, FRAME_PLUS = 0x70 + NFP_DWARF_FRAME, DEREFERENCE = 0x06 };
	int64_t bytes = take(machine, 1), operation = take(machine, 1);
	int64_t offset = take(machine, 1), last = take(machine, 1);
	// An offset that one byte holds: seven bits, the highest of them is the sign.
	if (bytes != BYTES || operation != FRAME_PLUS || last != DEREFERENCE || offset & 0x80)
		return false;
	machine->cfa.reg = NFP_FRAME_DEREFERENCED;
	machine->cfa.offset = (int32_t)(offset ^ 0x40) - 0x40;
	return true;
}

// Carries out an instruction that changes the rule. Returns whether it could.
static bool set_rule(struct machine *machine, uint8_t code)
{
	if ((code == 0x0d || code == 0x0e) && machine->cfa.reg < 0)
		return false; // a part of an expression
	if (code == 0x0f) // DW_CFA_def_cfa_expression
		return set_expression(machine);
	if (code == 0x10) // DW_CFA_expression: a register is saved
		return skip_number(machine) && skip_block(machine);
	if (code == 0x0c || code == 0x0d) { // DW_CFA_def_cfa, DW_CFA_def_cfa_register
		machine->cfa.reg = take_number(machine);
		if (machine->cfa.reg < 0 || machine->cfa.reg >= NFP_DWARF_GENERAL)
			return false;
	}
	if (code == 0x0c || code == 0x0e) { // DW_CFA_def_cfa_offset
		machine->cfa.offset = take_number(machine);
		return machine->cfa.offset >= 0;
	}
	if (code == 0x0a) { // DW_CFA_remember_state
		if (machine->remembered_count >= REMEMBERED_MAX)
			return false;
		machine->remembered[machine->remembered_count++] = machine->cfa;
		return true;
	}
	if (code == 0x0b) { // DW_CFA_restore_state
		if (!machine->remembered_count)
			return false;
		machine->cfa = machine->remembered[--machine->remembered_count];
		return true;
	}
	return code == 0x0d || code == 0x00; // DW_CFA_nop
}

// Carries out instructions up to and with the first advance. Returns its distance, 0 at the end, or -1.
static int64_t run_to_advance(struct machine *machine, bool *ended)
{
	while (machine->position < machine->bytes) {
		uint8_t code = machine->program[machine->position++];
		uint8_t high = code & 0xc0;
		if (high == 0x40)
			return code & 0x3f;
		if (high == 0xc0) // a register is restored: the CFA stays
			continue;
		if (high == 0x80) { // a register is saved
			if (!skip_number(machine))
				return -1;
		} else if (code >= 0x02 && code <= 0x04) {
			return take(machine, UINT32_C(1) << (code - 2));
		} else if (!set_rule(machine, code)) {
			return -1;
		}
	}
	*ended = true;
	return 0;
}

int nfp_frame_rows(const uint8_t *program, uint32_t bytes, const struct nfp_frame_start *start, int64_t *rows)
{
	if (start->cfa_register < 0 || start->cfa_register >= NFP_DWARF_GENERAL || start->cfa_offset < 0)
		return -1;
	struct machine machine = {
	    .program = program,
	    .bytes = bytes,
	    .cfa = {start->cfa_register, start->cfa_offset},
	    .rows = rows,
	};
	uint64_t address = start->address;
	bool ended = false;
	while (!ended) {
		int64_t distance = run_to_advance(&machine, &ended);
		if (distance < 0 || address >= ADDRESS_MAX || !emit(&machine, address))
			return -1;
		address += (uint64_t)distance;
		if (!ended && address > start->until)
			break;
	}
	return machine.count;
}
