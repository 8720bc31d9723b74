// SPDX-License-Identifier: Apache-2.0
// What runs behind an instruction. Included by codescan.c and realigned.c.
#ifndef NFPROBE_CORE_X86_64_FLOW_H
#define NFPROBE_CORE_X86_64_FLOW_H

#include "instruction.h"

// Whether the next instruction may follow, or the odd form of an instruction leaves that open.
enum nfp_going_on { NFP_FLOW_ENDS, NFP_FLOW_GOES_ON, NFP_FLOW_OPEN };

// Behind the last instruction of a function: a call there is of one that never returns.
static inline enum nfp_going_on nfp_flow_at_end(const uint8_t *code, const struct nfp_decoded *instruction)
{
	switch (instruction->kind) {
	case NFP_DECODED_BRANCH:
		if (instruction->is_conditional)
			return NFP_FLOW_GOES_ON;
		return code[0] == 0xe9 || code[0] == 0xeb ? NFP_FLOW_ENDS : NFP_FLOW_OPEN;
	case NFP_DECODED_TRAP:
		return code[0] == 0xcc || code[0] == 0xcd ? NFP_FLOW_ENDS : NFP_FLOW_OPEN;
	case NFP_DECODED_CALL:
	case NFP_DECODED_CALL_INDIRECT:
	case NFP_DECODED_JUMP_INDIRECT:
	case NFP_DECODED_RETURN:
	case NFP_DECODED_RETURN_POPPING:
		return NFP_FLOW_ENDS;
	}
	if (instruction->bytes == 2 && code[0] == 0x0f && code[1] == 0x0b)
		return NFP_FLOW_ENDS; // ud2
	bool is_usual = instruction->has_memory || instruction->kind != NFP_DECODED_PLAIN;
	return is_usual ? NFP_FLOW_GOES_ON : NFP_FLOW_OPEN;
}

// Inside a function: false only if nothing goes on from here.
static inline bool nfp_flow_goes_on(const uint8_t *code, const struct nfp_decoded *instruction)
{
	bool may_return = instruction->kind == NFP_DECODED_CALL ||
	                  instruction->kind == NFP_DECODED_CALL_INDIRECT ||
	                  instruction->kind == NFP_DECODED_TRAP;
	return may_return || nfp_flow_at_end(code, instruction) != NFP_FLOW_ENDS;
}

#endif
