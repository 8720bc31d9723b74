// SPDX-License-Identifier: Apache-2.0
#include "realigned.h"
#include "flow.h"
#include "framerows.h"
#include "instruction.h"

#include <string.h>

enum {
	RSP = 4,
	RBP = 5,
	R10 = 10,
	DWARF_RSP = 7,
	DWARF_RBP = 6,
	RETURN_BYTES = 8,
	PUSHED_BYTES = 8, // above what rbp points to: the copy of the return address, then what is not known
	PASSES_MAX = 8,
};

// Registers that a callee may overwrite and that no instruction implies, one number for machine code and DWARF.
static const uint32_t free_registers = 0x0700; // r8 to r10

struct ways {
	const struct nfp_realigned *function;
	uint8_t *marks; // for each byte of the code: a way leads there on which the register may hold the CFA
	const int64_t *row; // that holds at the instruction
	const int64_t *last_row;
	bool is_part; // entered by jumps, from where the register may hold the CFA
	bool again; // a way leads backwards
};

bool nfp_realigned_find(struct nfp_realigned *function)
{
	bool is_aligned = false;
	function->reg = NFP_REGISTER_NONE;
	for (int row = 0; row < function->row_count; row++) {
		const int64_t *words = function->rows + row * NFP_FRAME_ROW_WORDS;
		if (words[1] == NFP_FRAME_DEREFERENCED) {
			if (is_aligned && words[2] != function->slot)
				return false;
			is_aligned = true;
			function->slot = words[2];
		}
		if (words[1] < 0 || words[1] == DWARF_RSP || words[1] == DWARF_RBP || words[2] != 0)
			continue;
		bool is_other = function->reg != NFP_REGISTER_NONE && function->reg != words[1];
		if (is_other || !(free_registers >> words[1] & 1))
			return false;
		function->reg = (uint8_t)words[1];
	}
	if (is_aligned && function->reg == NFP_REGISTER_NONE)
		function->reg = R10; // a part of a function that uses the usual one
	return true;
}

static bool is_dereferenced(const struct ways *ways)
{
	return ways->row[1] == NFP_FRAME_DEREFERENCED;
}

// Whether the frame rules say that the register holds the CFA here.
static bool is_held_by_rule(const struct ways *ways)
{
	return ways->row[1] == ways->function->reg;
}

static bool is_frame_gone(const int64_t *row)
{
	return row[1] == DWARF_RSP && row[2] == RETURN_BYTES;
}

static bool names(const struct nfp_decoded *instruction, uint8_t reg)
{
	return instruction->registers >> reg & 1;
}

// Whether the register is written whole, and not read. Not known of all instructions that do so.
static bool is_overwritten(const struct nfp_decoded *instruction, uint8_t reg, const uint8_t *code)
{
	uint8_t rex = *code++;
	if ((rex & 0xf0) != 0x40 || instruction->base == reg || instruction->index == reg)
		return false;
	if (instruction->kind != NFP_DECODED_PLAIN)
		return instruction->to == reg && instruction->from != reg;
	if (instruction->bytes < 3)
		return false;
	bool extends = code[0] == 0x0f && (code[1] & 0xf6) == 0xb6; // movzx, movsx
	uint8_t modrm = code[extends ? 2 : 1];
	uint8_t middle = (modrm >> 3 & 7) | (rex & 4 ? 8 : 0), last = (modrm & 7) | (rex & 1 ? 8 : 0);
	bool is_register = modrm >> 6 == 3;
	switch (code[0]) {
	case 0x0f:
	case 0x63: // movsxd
	case 0x69: // imul of a constant
	case 0x6b:
		return (extends || code[0] != 0x0f) && middle == reg && !(is_register && last == reg);
	case 0x31: // xor
	case 0x33:
		return is_register && middle == reg && last == reg;
	case 0xc7: // mov of a constant
		return is_register && last == reg;
	}
	return (code[0] & 0xf8) == 0xb8 && ((code[0] & 7) | (rex & 1 ? 8 : 0)) == reg;
}

// Whether rbp points into the frame: to its end, until the last instructions.
static bool has_frame(const struct ways *ways)
{
	return is_dereferenced(ways) || is_held_by_rule(ways);
}

static bool is_slot(const struct ways *ways, const struct nfp_decoded *instruction)
{
	return has_frame(ways) && instruction->base == RBP &&
	       instruction->displacement == ways->function->slot;
}

// Whether the instruction is one of those that align the stack, or give it back.
static bool aligns(const struct ways *ways, const struct nfp_decoded *instruction, const uint8_t *code)
{
	uint8_t reg = ways->function->reg;
	if (!is_held_by_rule(ways) || instruction->index != NFP_REGISTER_NONE)
		return false;
	if (instruction->kind == NFP_DECODED_LEA)
		return instruction->base == reg && instruction->to == RSP && instruction->displacement < 0;
	if (instruction->kind != NFP_DECODED_PLAIN || code[0] != 0x41)
		return false;
	if (instruction->bytes == 2)
		return code[1] == 0x50 + (reg & 7); // push
	return code[1] == 0xff && (code[2] >> 3 & 7) == 6 && instruction->base == reg &&
	       instruction->displacement == -RETURN_BYTES; // push of a word
}

// Whether the instruction looks at what is above the saved rbp, or brings the CFA from its word elsewhere.
static bool looks_at_frame(const struct ways *ways, const struct nfp_decoded *instruction)
{
	if (!has_frame(ways) || instruction->base != RBP)
		return false;
	if (instruction->displacement >= PUSHED_BYTES)
		return true;
	if (!is_slot(ways, instruction) || instruction->kind == NFP_DECODED_LEA)
		return false;
	bool is_move = instruction->kind == NFP_DECODED_MOVE;
	bool stores = is_move && instruction->to == NFP_REGISTER_NONE;
	return !(stores || (is_move && instruction->to == ways->function->reg));
}

static bool is_stub(const struct nfp_code_scan *scan, uint64_t address)
{
	for (uint64_t index = 0; index < scan->stubs_count; index++) {
		if (address - scan->stubs[2 * index] < scan->stubs[2 * index + 1])
			return true;
	}
	return false;
}

static bool holds_after(const struct ways *ways, const struct nfp_decoded *instruction, const uint8_t *code,
                        bool holds)
{
	uint8_t reg = ways->function->reg;
	if (instruction->kind == NFP_DECODED_CALL_INDIRECT)
		return false;
	if (instruction->kind == NFP_DECODED_CALL) // a callee that is known may keep it: -fipa-ra
		return holds && !is_stub(ways->function->scan, instruction->target);
	if (!names(instruction, reg))
		return holds;
	if (!is_dereferenced(ways) || instruction->kind == NFP_DECODED_POP || is_slot(ways, instruction))
		return true;
	return holds && !is_overwritten(instruction, reg, code);
}

// Follows a way that leaves straight code, on which the register may hold the CFA. Returns whether it can be judged here.
static bool follow(struct ways *ways, const struct nfp_decoded *instruction, uint64_t offset)
{
	const struct nfp_realigned *function = ways->function;
	uint64_t to = instruction->target - function->start;
	if (instruction->kind == NFP_DECODED_BRANCH && to < function->bytes) {
		ways->again |= !ways->marks[to] && to <= offset;
		ways->marks[to] = 1;
		return true;
	}
	// A part of the function, the function that this is a part of, or a jump table.
	bool leads_on =
	    instruction->kind == NFP_DECODED_BRANCH || instruction->kind == NFP_DECODED_JUMP_INDIRECT;
	return !leads_on || is_frame_gone(ways->row);
}

static bool enters_inside(const struct ways *ways, uint64_t offset, uint32_t bytes)
{
	for (uint32_t index = 1; index < bytes; index++) {
		if (ways->marks[offset + index])
			return true;
	}
	return false;
}

// Goes through the code once. Returns whether nothing was found.
static bool pass(struct ways *ways)
{
	const struct nfp_realigned *function = ways->function;
	struct nfp_decoded instruction;
	bool holds = ways->is_part;
	ways->row = function->rows;
	for (uint64_t offset = 0; offset < function->bytes; offset += instruction.bytes) {
		const uint8_t *code = function->code + offset;
		uint64_t address = function->start + offset;
		if (!nfp_instruction_decode(code, function->bytes - offset, address, &instruction) ||
		    enters_inside(ways, offset, instruction.bytes))
			return false;
		while (ways->row < ways->last_row && (uint64_t)ways->row[NFP_FRAME_ROW_WORDS] <= address)
			ways->row += NFP_FRAME_ROW_WORDS;
		holds |= ways->marks[offset] || is_held_by_rule(ways);
		if (looks_at_frame(ways, &instruction))
			return false;
		if (holds && names(&instruction, function->reg) &&
		    !is_overwritten(&instruction, function->reg, code) && !aligns(ways, &instruction, code))
			return false;
		holds = holds_after(ways, &instruction, code, holds);
		if (holds && !follow(ways, &instruction, offset))
			return false;
		if (!nfp_flow_goes_on(code, &instruction))
			holds = ways->is_part; // of what jumps lead to, jump tables, or exceptions
	}
	return true;
}

bool nfp_realigned_is_clean(const struct nfp_realigned *function)
{
	struct ways ways = {
	    .function = function,
	    .marks = function->scan->marks,
	    .last_row = function->rows + (function->row_count - 1) * NFP_FRAME_ROW_WORDS,
	    .is_part = !is_frame_gone(function->rows),
	};
	if (function->bytes > function->scan->marks_room)
		return false;
	memset(ways.marks, 0, function->bytes);
	for (int count = 0; count < PASSES_MAX; count++) {
		ways.again = false;
		if (!pass(&ways))
			return false;
		if (!ways.again)
			return true;
	}
	return false;
}
