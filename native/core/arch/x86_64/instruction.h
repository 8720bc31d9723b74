// SPDX-License-Identifier: Apache-2.0
// One machine instruction: how long it is, and what the analysis wants to know of most of them. Knows what compilers
// write and decodes it as the full decoder does; what is rare, odd or wrong is left to that one, never guessed: a wrong
// length is a crashed target. The input is hostile: no byte behind its end is read.
#ifndef NFPROBE_CORE_INSTRUCTION_H
#define NFPROBE_CORE_INSTRUCTION_H

#include <stdbool.h>
#include <stdint.h>

// cdef begin
enum nfp_instruction_kind {
	NFP_DECODED_PLAIN, // matters for its memory operand only
	NFP_DECODED_MOVE, // between general registers or memory, 32 or 64 bits
	NFP_DECODED_LEA,
	NFP_DECODED_POP, // into a general register, 64 bits
	NFP_DECODED_BRANCH, // conditional or not, to a place that it names
	NFP_DECODED_CALL, // of a place that it names
	NFP_DECODED_JUMP_INDIRECT,
	NFP_DECODED_RETURN,
	NFP_DECODED_RETURN_POPPING, // removes arguments from the stack
	NFP_DECODED_CALL_INDIRECT,
	NFP_DECODED_TRAP, // int, int3, syscall; to all else as a plain one
};

// Besides the general registers 0 (rax) to 15 (r15), as machine code counts them.
enum { NFP_REGISTER_NONE = 16, NFP_REGISTER_NEXT = 17 }; // the address of the next instruction (rip)

struct nfp_decoded {
	uint64_t
	    target; // of a branch or call that names it; of a memory operand relative to the next instruction
	int64_t displacement; // of any other memory operand
	uint32_t registers; // bit mask: those of r8 to r15 that it names, and perhaps others
	uint8_t bytes;
	uint8_t kind; // enum nfp_instruction_kind
	uint8_t has_memory; // an operand in memory that is written out
	uint8_t base; // of that operand
	uint8_t index;
	uint8_t to; // of a move, lea or pop: the register that is written, or NFP_REGISTER_NONE
	uint8_t from; // of a move: the register that is read, or NFP_REGISTER_NONE
	uint8_t is_wide; // of a move or lea: 64 bits
	uint8_t is_conditional; // a conditional jump without prefixes
};

// Decodes the instruction at `address`. Returns its length, or 0: it is not one of those that this knows.
uint32_t nfp_instruction_decode(const uint8_t *code, uint64_t available, uint64_t address,
                                struct nfp_decoded *out);

// As many as follow each other, `room` at most. Returns their number.
uint64_t nfp_instructions_decode(const uint8_t *code, uint64_t available, uint64_t address,
                                 struct nfp_decoded *out, uint64_t room);
// cdef end

// Whether an instruction is one that compilers fill gaps with.
bool nfp_instruction_is_padding(const uint8_t *code, uint32_t bytes);

#endif
