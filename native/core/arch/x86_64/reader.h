// SPDX-License-Identifier: Apache-2.0
// A position in the bytes of one instruction that never leaves them, and its operands. Included by instruction.c,
// opcodes.c and vectors.c.
#ifndef NFPROBE_CORE_X86_64_READER_H
#define NFPROBE_CORE_X86_64_READER_H

#include "instruction.h"

#include <stdbool.h>
#include <string.h>

enum {
	REX_W = 8,
	REX_R = 4,
	REX_X = 2,
	REX_B = 1,
	REGISTER_MODE = 3, // of ModRM: its operand is a register
	WITH_SIB = 4, // as the operand of ModRM: a SIB byte follows; as an index in one: there is none
	WITHOUT_BASE = 5, // and as that or as a base in SIB without displacement: a 32-bit one, and no base
};

// What stands before the opcode. A prefix that may matter in other ways than here makes an instruction unknown.
struct prefixes {
	bool operand_size; // 66
	bool lock; // f0
	bool segment; // 26, 2e, 36, 3e, 64, 65
	bool address_size; // 67
	uint8_t repeat; // f2, f3
	uint8_t rex;
	uint8_t count;
};

struct reader {
	const uint8_t *code;
	uint32_t available;
	uint32_t position;
	bool failed; // an instruction that is not known, or not all there
	struct prefixes prefixes;
	bool has_modrm;
	uint8_t modrm;
	struct nfp_decoded *out;
};

static inline uint8_t take_byte(struct reader *reader)
{
	if (reader->position >= reader->available) {
		reader->failed = true;
		return 0;
	}
	return reader->code[reader->position++];
}

static inline void skip(struct reader *reader, uint32_t bytes)
{
	if (bytes > reader->available - reader->position)
		reader->failed = true;
	else
		reader->position += bytes;
}

// A signed number of 1 or 4 bytes.
static inline int64_t take_signed(struct reader *reader, uint32_t bytes)
{
	uint32_t at = reader->position;
	skip(reader, bytes);
	if (reader->failed)
		return 0;
	if (bytes == 1)
		return (int8_t)reader->code[at];
	int32_t value;
	memcpy(&value, reader->code + at, sizeof(value));
	return value;
}

static inline uint8_t modrm_reg(const struct reader *reader)
{
	return reader->modrm >> 3 & 7;
}

static inline bool is_register_mode(const struct reader *reader)
{
	return reader->modrm >> 6 == REGISTER_MODE;
}

static inline uint8_t extended(const struct reader *reader, uint8_t low, uint8_t bit)
{
	return low | (reader->prefixes.rex & bit ? 8 : 0);
}

static inline void name(struct reader *reader, uint8_t reg)
{
	if (reg < NFP_REGISTER_NONE)
		reader->out->registers |= UINT32_C(1) << reg;
}

// The general register that ModRM names besides the operand in memory, and the one instead of that.
static inline uint8_t reg_register(const struct reader *reader)
{
	return extended(reader, modrm_reg(reader), REX_R);
}

static inline uint8_t rm_register(const struct reader *reader)
{
	return is_register_mode(reader) ? extended(reader, reader->modrm & 7, REX_B) : NFP_REGISTER_NONE;
}

// ModRM and what belongs to its operand in memory.
static inline void take_modrm(struct reader *reader)
{
	struct nfp_decoded *out = reader->out;
	reader->modrm = take_byte(reader);
	reader->has_modrm = true;
	uint8_t mode = reader->modrm >> 6, operand = reader->modrm & 7;
	if (mode == REGISTER_MODE)
		return;
	reader->failed |= reader->prefixes.address_size;
	out->has_memory = true;
	if (operand == WITH_SIB) {
		uint8_t sib = take_byte(reader);
		uint8_t index = extended(reader, sib >> 3 & 7, REX_X);
		out->index = index == WITH_SIB ? NFP_REGISTER_NONE : index;
		operand = sib & 7;
		if (mode != 0 || operand != WITHOUT_BASE)
			out->base = extended(reader, operand, REX_B);
	} else if (mode == 0 && operand == WITHOUT_BASE) {
		out->base = NFP_REGISTER_NEXT;
	} else {
		out->base = extended(reader, operand, REX_B);
	}
	if (mode == 0 && operand == WITHOUT_BASE)
		out->displacement = take_signed(reader, 4);
	else if (mode != 0)
		out->displacement = take_signed(reader, mode == 1 ? 1 : 4);
}

static inline bool is_wide(const struct reader *reader)
{
	return reader->prefixes.rex & REX_W;
}

// Whether operands have 16 bits.
static inline bool is_short(const struct reader *reader)
{
	return reader->prefixes.operand_size && !is_wide(reader);
}

// An immediate of the operand size, but 32 bits at most.
static inline void skip_word(struct reader *reader)
{
	skip(reader, is_short(reader) ? 2 : 4);
}

// Bit mask of the values of a field: whether this one is among them.
static inline void expect(struct reader *reader, uint64_t mask, uint8_t value)
{
	reader->failed |= !(mask >> value & 1);
}

// ModRM whose middle field is among those of one mask when its operand is in memory, else of the other.
static inline void take_group(struct reader *reader, uint8_t in_memory, uint8_t in_register)
{
	take_modrm(reader);
	expect(reader, is_register_mode(reader) ? in_register : in_memory, modrm_reg(reader));
}

// Decodes what follows the prefixes. What is not known makes the reader fail.
void nfp_opcode_take(struct reader *reader);

// The same, behind the first byte of a VEX or EVEX prefix.
void nfp_vector_take(struct reader *reader, uint8_t first);

#endif
