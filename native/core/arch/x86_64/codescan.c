// SPDX-License-Identifier: Apache-2.0
#include "codescan.h"
#include "arch/arch.h"
#include "flow.h"
#include "framerows.h"
#include "instruction.h"
#include "realigned.h"

#include <stdbool.h>
#include <string.h>

enum {
	RSP = 4,
	RBP = 5,
	REGISTERS = 16,
	DWARF_RSP = 7,
	DWARF_RBP = 6,
	RETURN_BYTES = 8, // the CFA is so far above the stack pointer at the entry
	ENTRY_COPY = -8, // the stack pointer at entry, as a distance from the CFA
	COPY_REACH_BYTES = 64,
	NEAR_ENTRY_BYTES = 48,
	FUNCTION_BYTES_MAX = 16 << 20,
};

// Registers by their DWARF numbers.
static const uint8_t by_dwarf[REGISTERS] = {0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15};
static const uint32_t scratch = 0x0fc7; // rax, rcx, rdx, rsi, rdi, r8 to r11: calls destroy them

struct scanner {
	struct nfp_code_function *function;
	struct nfp_code_event *events;
	uint64_t high;
	uint64_t address; // of the instruction, its offset in the function, and that of the one before
	uint32_t offset;
	uint32_t before;
	const int64_t *rows;
	int row_count;
	int row; // that holds at the instruction
	uint32_t copies; // bit mask: registers that hold a copy of the stack pointer
	int64_t distances[REGISTERS]; // from the CFA to where those point
	uint8_t realigned; // the register that holds the CFA where the stack is aligned, or NFP_REGISTER_NONE
};

static void blame(struct scanner *scanner, enum nfp_code_trouble trouble)
{
	if (trouble == NFP_CODE_RETURN_ADDRESS)
		scanner->function->flags |= NFP_CODE_READS_RETURN;
	if (scanner->function->trouble == NFP_CODE_NO_TROUBLE)
		scanner->function->trouble = trouble;
}

static int64_t row_register(const struct scanner *scanner)
{
	return scanner->rows[scanner->row * NFP_FRAME_ROW_WORDS + 1];
}

static int64_t row_offset(const struct scanner *scanner)
{
	return scanner->rows[scanner->row * NFP_FRAME_ROW_WORDS + 2];
}

static bool frame_is_gone(const struct scanner *scanner)
{
	return row_register(scanner) == DWARF_RSP && row_offset(scanner) == RETURN_BYTES;
}

static void emit(struct scanner *scanner, enum nfp_code_event_kind kind, uint64_t value)
{
	struct nfp_code_event *event = scanner->events + scanner->function->events++;
	event->value = value;
	event->offset = scanner->offset;
	event->kind = (uint16_t)kind;
	event->frame_is_gone = frame_is_gone(scanner);
}

// Goes on to the row that holds at the instruction.
static void find_row(struct scanner *scanner)
{
	while (scanner->row + 1 < scanner->row_count &&
	       (uint64_t)scanner->rows[(scanner->row + 1) * NFP_FRAME_ROW_WORDS] <= scanner->address)
		scanner->row++;
}

// The register was overwritten. Copies of the stack pointer at entry are followed for good.
static void drop_copy(struct scanner *scanner, uint8_t reg)
{
	if (reg < REGISTERS && scanner->distances[reg] != ENTRY_COPY)
		scanner->copies &= ~(UINT32_C(1) << reg);
}

static bool is_copy(const struct scanner *scanner, uint8_t reg)
{
	return reg < REGISTERS && (scanner->copies >> reg & 1);
}

// The register takes the value CFA + distance.
static void copy(struct scanner *scanner, uint8_t reg, int64_t distance)
{
	drop_copy(scanner, reg);
	if (reg == RSP || (reg == scanner->realigned && distance == 0))
		return;
	if (distance >= 0) {
		blame(scanner, NFP_CODE_STACK_ARGUMENTS);
		scanner->function->flags |= NFP_CODE_TAKES_ADDRESS;
	} else if (distance >= -COPY_REACH_BYTES && !is_copy(scanner, reg)) {
		scanner->copies |= UINT32_C(1) << reg;
		scanner->distances[reg] = distance;
	}
}

// Whether the memory operand's address minus the CFA is known, and that.
static bool find_distance(const struct scanner *scanner, const struct nfp_decoded *instruction,
                          int64_t *distance)
{
	if (instruction->base >= REGISTERS)
		return false;
	bool has_register = row_register(scanner) >= 0 && row_register(scanner) != scanner->realigned;
	if (has_register && instruction->base == by_dwarf[row_register(scanner)])
		*distance = instruction->displacement - row_offset(scanner);
	else if (is_copy(scanner, instruction->base))
		*distance = instruction->displacement + scanner->distances[instruction->base];
	else
		return false;
	return true;
}

static void touch(struct scanner *scanner, const struct nfp_decoded *instruction, int64_t distance)
{
	if (distance >= 0) {
		blame(scanner, NFP_CODE_STACK_ARGUMENTS);
		emit(scanner, NFP_CODE_ARGUMENT, (uint64_t)distance);
		if (instruction->index != NFP_REGISTER_NONE)
			scanner->function->flags |= NFP_CODE_TAKES_ADDRESS;
	} else if (distance >= -RETURN_BYTES) {
		blame(scanner, NFP_CODE_RETURN_ADDRESS);
	}
}

static void move(struct scanner *scanner, const struct nfp_decoded *instruction)
{
	uint8_t from = instruction->is_wide ? instruction->from : NFP_REGISTER_NONE;
	// Who takes the frame pointer as a value looks at what lies above it: the return address.
	bool is_frame = row_register(scanner) == DWARF_RBP ||
	                row_register(scanner) == NFP_FRAME_DEREFERENCED ||
	                row_register(scanner) == scanner->realigned;
	if (from == RBP && instruction->to != RSP && is_frame)
		blame(scanner, NFP_CODE_RETURN_ADDRESS);
	if (from == RSP && row_register(scanner) == DWARF_RSP && instruction->to < REGISTERS)
		copy(scanner, instruction->to, -row_offset(scanner));
	else
		drop_copy(scanner, instruction->to);
}

// Returns whether the instruction can be judged here.
static bool take_address(struct scanner *scanner, const struct nfp_decoded *instruction)
{
	int64_t distance = 0;
	if (instruction->base == NFP_REGISTER_NEXT) {
		emit(scanner, NFP_CODE_REFERENCE, instruction->target);
	} else if (find_distance(scanner, instruction, &distance)) {
		copy(scanner, instruction->to, distance);
		return instruction->is_wide;
	}
	drop_copy(scanner, instruction->to);
	return true;
}

static void branch(struct scanner *scanner, const struct nfp_decoded *instruction)
{
	uint64_t low = scanner->function->start;
	if (instruction->target >= low && instruction->target < scanner->high) {
		if (instruction->target < low + NEAR_ENTRY_BYTES)
			emit(scanner, NFP_CODE_NEAR, instruction->target);
		return;
	}
	scanner->function->flags |= NFP_CODE_HAS_EXIT;
	emit(scanner, instruction->is_conditional ? NFP_CODE_CONDITIONAL_JUMP : NFP_CODE_JUMP,
	     instruction->target);
}

static void jump_indirect(struct scanner *scanner, const struct nfp_decoded *instruction)
{
	if (instruction->base == NFP_REGISTER_NEXT) {
		scanner->function->flags |= NFP_CODE_HAS_EXIT;
		emit(scanner, NFP_CODE_SLOT_JUMP, instruction->target);
	} else if (frame_is_gone(scanner)) {
		emit(scanner, NFP_CODE_POINTER_JUMP, scanner->function->start + scanner->before);
	} else {
		scanner->function->flags |= NFP_CODE_HAS_TABLE;
	}
}

static void destroy_scratch(struct scanner *scanner)
{
	for (uint8_t reg = 0; scanner->copies && reg < REGISTERS; reg++) {
		if (scratch >> reg & 1)
			drop_copy(scanner, reg);
	}
}

// Returns whether the instruction can be judged here.
static bool judge(struct scanner *scanner, const struct nfp_decoded *instruction)
{
	int64_t distance;
	if (instruction->kind == NFP_DECODED_LEA)
		return take_address(scanner, instruction);
	if (instruction->has_memory && find_distance(scanner, instruction, &distance))
		touch(scanner, instruction, distance);
	switch (instruction->kind) {
	case NFP_DECODED_MOVE:
		move(scanner, instruction);
		break;
	case NFP_DECODED_POP:
		drop_copy(scanner, instruction->to);
		if (frame_is_gone(scanner))
			blame(scanner, NFP_CODE_RETURN_ADDRESS);
		break;
	case NFP_DECODED_BRANCH:
		branch(scanner, instruction);
		break;
	case NFP_DECODED_CALL:
		emit(scanner, NFP_CODE_CALL, instruction->target);
		destroy_scratch(scanner);
		break;
	case NFP_DECODED_CALL_INDIRECT:
		destroy_scratch(scanner);
		break;
	case NFP_DECODED_JUMP_INDIRECT:
		jump_indirect(scanner, instruction);
		break;
	case NFP_DECODED_RETURN_POPPING:
	case NFP_DECODED_RETURN:
		scanner->function->flags |= NFP_CODE_HAS_EXIT;
		if (!frame_is_gone(scanner))
			scanner->function->flags |= NFP_CODE_EXITS_ELSEWHERE;
		if (instruction->kind == NFP_DECODED_RETURN_POPPING)
			blame(scanner, NFP_CODE_POPS_ARGUMENTS);
		break;
	}
	return true;
}

// Returns whether the whole function could be judged here.
static bool scan_code(struct scanner *scanner, const uint8_t *code)
{
	struct nfp_code_function *function = scanner->function;
	struct nfp_decoded instruction;
	enum nfp_going_on last = NFP_FLOW_OPEN;
	function->trouble = NFP_CODE_NO_TROUBLE;
	for (uint64_t offset = 0; offset < function->bytes; offset += instruction.bytes) {
		scanner->offset = (uint32_t)offset;
		scanner->address = function->start + offset;
		if (!nfp_instruction_decode(code + offset, function->bytes - offset, scanner->address,
		                            &instruction))
			return false;
		find_row(scanner);
		if (!judge(scanner, &instruction))
			return false;
		if (!nfp_instruction_is_padding(code + offset, instruction.bytes))
			last = nfp_flow_at_end(code + offset, &instruction);
		scanner->before = scanner->offset;
	}
	if (last == NFP_FLOW_GOES_ON)
		function->flags |= NFP_CODE_RUNS_ON;
	return last != NFP_FLOW_OPEN;
}

// Whether a call arrives at the start. Where a .cold part begins with an exception handler, gcc puts a nop before it and
// the frame rules behind that.
static bool is_called(const struct scanner *scanner, const uint8_t *code)
{
	const int64_t *row = scanner->rows, *next = row + NFP_FRAME_ROW_WORDS;
	if (*code == 0x90 && scanner->row_count > 1 && (uint64_t)next[0] == scanner->function->start + 1)
		row = next;
	return row[1] == DWARF_RSP && row[2] == RETURN_BYTES;
}

// Hands over the rows that begin near the function's entry.
static void keep_rows(struct nfp_code_scan *scan, struct nfp_code_function *function, const int64_t *rows,
                      int count)
{
	uint64_t until = function->start + scan->entry_bytes;
	int64_t *kept = scan->rows + scan->rows_count * NFP_FRAME_ROW_WORDS;
	for (int row = 0; row < count && (uint64_t)rows[row * NFP_FRAME_ROW_WORDS] <= until; row++)
		function->rows++;
	memcpy(kept, rows, function->rows * NFP_FRAME_ROW_WORDS * sizeof(*rows));
}

// The lengths of the first instructions, where a patch site would be.
static void find_head(struct nfp_code_function *function, const uint8_t *code)
{
	static const uint8_t endbr[] = {0xf3, 0x0f, 0x1e, 0xfa};
	struct nfp_decoded decoded;
	uint64_t offset = 0, taken = 0;
	if (function->bytes >= sizeof(endbr) && memcmp(code, endbr, sizeof(endbr)) == 0)
		offset = sizeof(endbr);
	uint32_t head = 0;
	for (uint32_t shift = 0; taken < NFP_JUMP_BYTES; shift += 4, taken += decoded.bytes) {
		uint64_t at = offset + taken;
		if (at >= function->bytes ||
		    !nfp_instruction_decode(code + at, function->bytes - at, function->start + at,
		                            &decoded) ||
		    decoded.kind > NFP_DECODED_POP)
			return;
		head |= (uint32_t)decoded.bytes << shift;
	}
	function->head = head;
}

static bool scan_function(struct nfp_code_scan *scan, struct nfp_code_function *function)
{
	int64_t rows[NFP_FRAME_ROWS_MAX * NFP_FRAME_ROW_WORDS];
	if (!function->bytes || function->bytes > FUNCTION_BYTES_MAX || function->code > scan->file_bytes ||
	    function->bytes > scan->file_bytes - function->code || function->program > scan->programs_bytes ||
	    function->program_bytes > scan->programs_bytes - function->program ||
	    function->start > UINT64_MAX / 2)
		return false;
	struct nfp_frame_start start = {
	    .address = function->start,
	    .until = UINT64_MAX,
	    .cfa_register = function->cfa_register,
	    .cfa_offset = function->cfa_offset,
	};
	struct scanner scanner = {
	    .function = function,
	    .events = scan->events + scan->events_count,
	    .high = function->start + function->bytes,
	    .rows = rows,
	};
	const uint8_t *code = scan->file + function->code;
	scanner.row_count =
	    nfp_frame_rows(scan->programs + function->program, function->program_bytes, &start, rows);
	struct nfp_realigned realigned = {
	    .scan = scan,
	    .code = code,
	    .start = function->start,
	    .bytes = function->bytes,
	    .rows = rows,
	    .row_count = scanner.row_count,
	};
	if (scanner.row_count <= 0 || !nfp_realigned_find(&realigned))
		return false;
	scanner.realigned = realigned.reg;
	find_head(function, code);
	keep_rows(scan, function, rows, scanner.row_count);
	if (is_called(&scanner, code))
		function->flags |= NFP_CODE_OWN_ENTRY;
	return scan_code(&scanner, code) &&
	       (realigned.reg == NFP_REGISTER_NONE || nfp_realigned_is_clean(&realigned));
}

void nfp_code_scan(struct nfp_code_scan *scan)
{
	for (; scan->done < scan->count; scan->done++) {
		struct nfp_code_function *function = scan->functions + scan->done;
		// Two events at most for one instruction, and none for an instruction of one byte.
		if (function->bytes > scan->events_room - scan->events_count ||
		    scan->rows_room - scan->rows_count < NFP_FRAME_ROWS_MAX)
			return;
		function->flags = function->events = function->rows = function->head = 0;
		function->first_event = scan->events_count;
		function->first_row = scan->rows_count;
		if (!scan_function(scan, function)) {
			function->trouble = NFP_CODE_UNKNOWN;
			function->events = 0;
		}
		scan->events_count += function->events;
		scan->rows_count += function->rows;
	}
}

int64_t nfp_code_targets(const uint8_t *code, uint64_t bytes, uint64_t address, uint64_t *targets)
{
	struct nfp_decoded instruction;
	int64_t count = 0;
	for (uint64_t offset = 0; offset < bytes; offset += instruction.bytes) {
		if (!nfp_instruction_decode(code + offset, bytes - offset, address + offset, &instruction))
			return -1;
		if (instruction.kind == NFP_DECODED_BRANCH || instruction.kind == NFP_DECODED_CALL)
			targets[count++] = instruction.target;
	}
	return count;
}
