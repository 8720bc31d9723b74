// SPDX-License-Identifier: Apache-2.0
// What the machine code of functions shows: branches, exits, and how they use their caller's frame. The same as
// scan.py of otel_nfprobe/arch finds, whose words are used here, for functions that consist of instructions which
// instruction.h knows and whose frame rules framerows.h knows; the others are left to it. What needs an instruction's
// full decoding is left to it, too. The input is hostile.
#ifndef NFPROBE_CORE_CODESCAN_H
#define NFPROBE_CORE_CODESCAN_H

#include <stdint.h>

// cdef begin
enum nfp_code_event_kind {
	NFP_CODE_JUMP, // direct, out of the function; value: where it leads
	NFP_CODE_CONDITIONAL_JUMP, // the same
	NFP_CODE_SLOT_JUMP, // value: the word that it goes through
	NFP_CODE_POINTER_JUMP, // with no frame left; value: the instruction before it, or its own
	NFP_CODE_CALL, // direct; value: where it leads
	NFP_CODE_REFERENCE, // value: an address that is taken
	NFP_CODE_NEAR, // a branch to a place near the function's start; value: that
	NFP_CODE_ARGUMENT, // an operand in the stack arguments; value: its distance from the CFA
};

struct nfp_code_event {
	uint64_t value;
	uint32_t offset; // of the instruction in its function
	uint16_t kind; // enum nfp_code_event_kind
	uint16_t frame_is_gone; // the stack pointer is what it was at the function's entry
};

enum nfp_code_trouble {
	NFP_CODE_UNKNOWN, // not scanned: by other means
	NFP_CODE_NO_TROUBLE,
	NFP_CODE_STACK_ARGUMENTS,
	NFP_CODE_RETURN_ADDRESS,
	NFP_CODE_POPS_ARGUMENTS,
};

enum nfp_code_flags {
	NFP_CODE_HAS_EXIT = 1,
	NFP_CODE_EXITS_ELSEWHERE = 2,
	NFP_CODE_HAS_TABLE = 4,
	NFP_CODE_TAKES_ADDRESS = 8,
	NFP_CODE_READS_RETURN = 16,
	NFP_CODE_OWN_ENTRY = 32,
	NFP_CODE_RUNS_ON = 64, // into what stands behind it
};

// One function: where its bytes and its frame program are, and what was found. Addresses are the file's own.
struct nfp_code_function {
	uint64_t start;
	uint64_t code; // offset in the file
	uint64_t bytes; // of code; 0: not to be scanned
	uint64_t program; // offset in the frame programs
	uint32_t program_bytes;
	int32_t cfa_register; // where the frame program begins
	int32_t cfa_offset;
	uint32_t trouble; // enum nfp_code_trouble
	uint32_t flags; // enum nfp_code_flags
	uint32_t events; // their number
	uint64_t first_event;
	uint64_t first_row; // of the frame rules near the entry
	uint32_t rows; // their number; 0: by other means
	uint32_t
	    head; // lengths of the first instructions, of NFP_JUMP_BYTES or more, 4 bits each, the first one
	// lowest, without a mark for branches; 0: one of them does more than to go on to the next
};

struct nfp_code_scan {
	const uint8_t *file;
	uint64_t file_bytes;
	const uint8_t *programs;
	uint64_t programs_bytes;
	struct nfp_code_function *functions;
	uint64_t count;
	uint64_t done; // functions that are scanned
	struct nfp_code_event *events;
	uint64_t events_room;
	uint64_t events_count;
	int64_t *rows; // NFP_FRAME_ROW_WORDS each, as nfp_frame_rows writes them
	uint64_t rows_room; // at least NFP_FRAME_ROWS_MAX
	uint64_t rows_count;
	uint64_t entry_bytes; // how near to the entry rows are wanted
	const uint64_t *stubs; // address and size of each section of stubs that lead to other modules
	uint64_t stubs_count;
	uint8_t *marks; // of its own
	uint64_t marks_room;
};

// Scans functions from `done` on, until all are done or there may be no room for the events or rows of the next one.
void nfp_code_scan(struct nfp_code_scan *scan);

// Where the direct branches and calls of some bytes lead: `room` targets at most, one for each byte is enough.
// Returns their number, or -1: there is an instruction among them that is not known.
int64_t nfp_code_targets(const uint8_t *code, uint64_t bytes, uint64_t address, uint64_t *targets);
// cdef end

#endif
