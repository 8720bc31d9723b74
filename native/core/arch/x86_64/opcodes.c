// SPDX-License-Identifier: Apache-2.0
#include "opcodemaps.h"
#include "reader.h"

// ---- opcodes that say more than the tables ---------------------------------------------------------------------

static void take_branch(struct reader *reader, uint32_t bytes, enum nfp_instruction_kind kind)
{
	const struct prefixes *prefixes = &reader->prefixes;
	// bnd is harmless, and data16 before the calls of the linker's thread-local sequences.
	reader->failed |= prefixes->repeat == 0xf3 ||
	                  (prefixes->operand_size && !(is_wide(reader) && bytes == 4)) ||
	                  (prefixes->address_size && bytes == 1);
	int64_t distance = take_signed(reader, bytes);
	reader->out->target = (uint64_t)distance;
	reader->out->kind = (uint8_t)kind;
}

static void take_return(struct reader *reader, uint8_t opcode)
{
	reader->failed |= reader->prefixes.operand_size;
	reader->out->kind = opcode == 0xc2 ? NFP_DECODED_RETURN_POPPING : NFP_DECODED_RETURN;
	if (opcode == 0xc2)
		skip(reader, 2);
}

static void take_push_or_pop(struct reader *reader, uint8_t opcode)
{
	if (opcode < 0x58 || is_short(reader))
		return;
	reader->out->kind = NFP_DECODED_POP;
	reader->out->to = extended(reader, opcode & 7, REX_B);
}

static void take_move(struct reader *reader, uint8_t opcode)
{
	struct nfp_decoded *out = reader->out;
	take_modrm(reader);
	if (is_short(reader))
		return;
	bool is_load = opcode == 0x8b;
	out->kind = NFP_DECODED_MOVE;
	out->is_wide = is_wide(reader);
	out->to = is_load ? reg_register(reader) : rm_register(reader);
	out->from = is_load ? rm_register(reader) : reg_register(reader);
}

static void take_lea(struct reader *reader)
{
	take_modrm(reader);
	reader->failed |= is_register_mode(reader);
	reader->out->kind = NFP_DECODED_LEA;
	reader->out->is_wide = is_wide(reader);
	reader->out->to = reg_register(reader);
}

static void take_indirect(struct reader *reader)
{
	take_group(reader, 0x57, 0x57); // inc, dec, call, jmp, push
	bool flows = modrm_reg(reader) == 2 || modrm_reg(reader) == 4;
	reader->failed |= flows ? reader->prefixes.operand_size : reader->prefixes.repeat != 0;
	if (flows)
		reader->out->kind =
		    modrm_reg(reader) == 2 ? NFP_DECODED_CALL_INDIRECT : NFP_DECODED_JUMP_INDIRECT;
}

static void take_one_byte_group(struct reader *reader, uint8_t opcode)
{
	switch (opcode) {
	case 0x8f: // pop
		take_group(reader, 0x01, 0x01);
		break;
	case 0xc6: // mov
		take_group(reader, 0x01, 0x01);
		skip(reader, 1);
		break;
	case 0xc7:
		take_group(reader, 0x01, 0x01);
		skip_word(reader);
		break;
	case 0xf6: // test, not, neg, mul, div
		take_modrm(reader);
		skip(reader, modrm_reg(reader) < 2);
		break;
	case 0xf7:
		take_modrm(reader);
		if (modrm_reg(reader) < 2)
			skip_word(reader);
		break;
	case 0xfe: // inc, dec
		take_group(reader, 0x03, 0x03);
		break;
	default:
		take_indirect(reader);
	}
}

static void take_coprocessor(struct reader *reader, uint8_t opcode)
{
	static const uint8_t in_memory[8] = {0xff, 0xfd, 0xff, 0xaf, 0xff, 0xdf, 0xff, 0xff};
	static const uint64_t in_register[8] = {UINT64_C(0xffffffffffffffff), UINT64_C(0xffff7f33ff01ffff),
	                                        UINT64_C(0x00000200ffffffff), UINT64_C(0x00ffff1fffffffff),
	                                        UINT64_C(0xffffffffffffffff), UINT64_C(0x0000ffffffffffff),
	                                        UINT64_C(0xffffffff02ffffff), UINT64_C(0x00ffff01ffffffff)};
	take_modrm(reader);
	if (is_register_mode(reader))
		expect(reader, in_register[opcode & 7], reader->modrm & 63);
	else
		expect(reader, in_memory[opcode & 7], modrm_reg(reader));
}

static void take_two_bytes_group(struct reader *reader, uint8_t opcode)
{
	switch (opcode) {
	case 0x1e: // endbr64
		take_modrm(reader);
		reader->failed |= reader->modrm != 0xfa;
		break;
	case 0x71: // vector shifts
	case 0x72:
		take_group(reader, 0, 0x54);
		skip(reader, 1);
		break;
	case 0x73:
		take_group(reader, 0, reader->prefixes.operand_size ? 0xcc : 0x44);
		skip(reader, 1);
		break;
	case 0xae: // fences, MXCSR, states of the coprocessor
		take_group(reader, 0xff, 0xe0);
		break;
	case 0xba: // bt, bts, btr, btc
		take_group(reader, 0xf0, 0xf0);
		skip(reader, 1);
		break;
	default: // cmpxchg8b, rdrand
		take_group(reader, 0x02, 0xc0);
	}
}

// ---- what instructions with a prefix are known -----------------------------------------------------------------

static bool may_repeat(const struct reader *reader, uint8_t opcode, char form)
{
	bool is_string = (opcode >= 0xa4 && opcode <= 0xa7) || (opcode >= 0xaa && opcode <= 0xaf);
	bool flows = form == BRANCH_BYTE || form == BRANCH_WORD || form == RETURN || opcode == 0xff;
	if (reader->prefixes.repeat == 0xf3)
		return is_string || form == RETURN || opcode == 0x90;
	return is_string || flows;
}

// Of instructions with one byte of opcode.
static bool may_lock(const struct reader *reader, uint8_t opcode)
{
	uint8_t reg = modrm_reg(reader);
	if (!reader->out->has_memory || reader->prefixes.repeat)
		return false;
	if (opcode < 0x38)
		return (opcode & 7) < 2; // add, or, adc, sbb, and, sub, xor
	if (opcode == 0x80 || opcode == 0x81 || opcode == 0x83)
		return reg != 7;
	if (opcode == 0xf6 || opcode == 0xf7)
		return reg == 2 || reg == 3;
	return opcode == 0x86 || opcode == 0x87 || ((opcode == 0xfe || opcode == 0xff) && reg < 2);
}

static bool may_lock_two_bytes(const struct reader *reader, uint8_t opcode)
{
	bool is_bit =
	    opcode == 0xab || opcode == 0xb3 || opcode == 0xbb || (opcode == 0xba && modrm_reg(reader) > 4);
	bool is_exchange =
	    opcode == 0xb0 || opcode == 0xb1 || opcode == 0xc0 || opcode == 0xc1 || opcode == 0xc7;
	return reader->out->has_memory && !reader->prefixes.repeat && (is_bit || is_exchange);
}

// ---- opcodes ---------------------------------------------------------------------------------------------------

// Of letters that only say how many bytes follow, and in which addressing modes.
static void take_operands(struct reader *reader, char form)
{
	switch (form) {
	case ALONE:
		break;
	case MODRM:
		take_modrm(reader);
		break;
	case MODRM_MEMORY:
		take_group(reader, 0xff, 0);
		break;
	case MODRM_REGISTER:
		take_group(reader, 0, 0xff);
		break;
	case MODRM_BYTE:
		take_modrm(reader);
		skip(reader, 1);
		break;
	case MODRM_REGISTER_BYTE:
		take_group(reader, 0, 0xff);
		skip(reader, 1);
		break;
	case MODRM_WORD:
		take_modrm(reader);
		skip_word(reader);
		break;
	case BYTE:
		skip(reader, 1);
		break;
	case WORD:
		skip_word(reader);
		break;
	case QUADWORD:
		skip(reader, is_wide(reader) ? 8 : is_short(reader) ? 2 : 4);
		break;
	default:
		reader->failed = true;
	}
}

// Registers that the opcode itself or ModRM names. Many of the latter are vector registers, or a part of the opcode.
static void name_registers(struct reader *reader, uint8_t opcode)
{
	if (!reader->has_modrm) {
		name(reader, extended(reader, opcode & 7, REX_B));
		return;
	}
	name(reader, reg_register(reader));
	name(reader, rm_register(reader));
}

// What the letter of an opcode says is behind it.
static void take_form(struct reader *reader, uint8_t opcode, char form)
{
	switch (form) {
	case BRANCH_BYTE:
		take_branch(reader, 1, NFP_DECODED_BRANCH);
		break;
	case BRANCH_WORD:
		take_branch(reader, 4, opcode == 0xe8 ? NFP_DECODED_CALL : NFP_DECODED_BRANCH);
		break;
	case MOVE:
		take_move(reader, opcode);
		break;
	case ADDRESS:
		take_lea(reader);
		break;
	case PUSH_POP:
		take_push_or_pop(reader, opcode);
		break;
	case RETURN:
		take_return(reader, opcode);
		break;
	case TRAP:
	case TRAP_BYTE:
		reader->out->kind = NFP_DECODED_TRAP;
		skip(reader, form == TRAP_BYTE);
		break;
	case COPROCESSOR:
		take_coprocessor(reader, opcode);
		break;
	default:
		take_operands(reader, form);
	}
}

static void take_three_bytes(struct reader *reader, uint8_t map)
{
	const struct prefixes *prefixes = &reader->prefixes;
	uint8_t opcode = take_byte(reader);
	char form = map == 0x38 ? three_bytes[prefixes->operand_size][opcode]
	                        : three_bytes_immediate[prefixes->operand_size][opcode];
	if (prefixes->repeat) {
		bool is_checksum = prefixes->repeat == 0xf2 && (opcode & 0xfe) == 0xf0;
		bool adds_overflow = prefixes->repeat == 0xf3 && opcode == 0xf6;
		form = map == 0x38 && (is_checksum || adds_overflow) ? MODRM : UNKNOWN;
	}
	take_form(reader, opcode, form);
	reader->failed |= prefixes->lock;
	name_registers(reader, opcode);
}

static void take_two_bytes(struct reader *reader)
{
	const struct prefixes *prefixes = &reader->prefixes;
	uint8_t opcode = take_byte(reader);
	reader->failed |= prefixes->operand_size && prefixes->repeat;
	if (opcode == 0x38 || opcode == 0x3a) {
		take_three_bytes(reader, opcode);
		return;
	}
	uint32_t table = prefixes->repeat == 0xf3 ? 2 : prefixes->repeat ? 3 : prefixes->operand_size;
	char form = two_bytes[table][opcode];
	if (form == GROUP)
		take_two_bytes_group(reader, opcode);
	else
		take_form(reader, opcode, form);
	reader->failed |= prefixes->lock && !may_lock_two_bytes(reader, opcode);
	name_registers(reader, opcode);
	reader->out->is_conditional = form == BRANCH_WORD && !prefixes->count && !prefixes->rex;
}

void nfp_opcode_take(struct reader *reader)
{
	const struct prefixes *prefixes = &reader->prefixes;
	uint8_t opcode = take_byte(reader);
	if (opcode == 0x0f) {
		take_two_bytes(reader);
		return;
	}
	char form = one_byte[opcode];
	if (form == VECTOR) {
		nfp_vector_take(reader, opcode);
		return;
	}
	if (form == GROUP)
		take_one_byte_group(reader, opcode);
	else
		take_form(reader, opcode, form);
	reader->failed |= prefixes->repeat && !may_repeat(reader, opcode, form);
	reader->failed |= prefixes->lock && !may_lock(reader, opcode);
	name_registers(reader, opcode);
	reader->out->is_conditional = (opcode & 0xf0) == 0x70 && !prefixes->count && !prefixes->rex;
}
