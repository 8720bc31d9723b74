// SPDX-License-Identifier: Apache-2.0
// The templates of template.S and template_packets.S by their shapes, and the instructions that are fields of them.
#include "abi/session.h"
#include "arch/arch.h"

#define DECLARE(name)                                                                                        \
	extern const uint8_t nfp_template_##name[], nfp_template_end_##name[];                               \
	extern const struct nfp_template_field nfp_fields_##name[];                                          \
	extern const struct nfp_template_row nfp_rows_##name[]
DECLARE(call);
DECLARE(receive);
DECLARE(packets);
DECLARE(bare);
DECLARE(enter);
DECLARE(mark);
DECLARE(exit);
DECLARE(copy_0);
DECLARE(copy_2);
DECLARE(copy_4);
DECLARE(copy_8);
DECLARE(copy_16);
DECLARE(copy_32);
DECLARE(copy_64);
DECLARE(call_value);
DECLARE(enter_value);

enum { JUMP_SHORT = 0xeb, JUMP_ZERO = 0x74, JUMP_NONZERO = 0x75 };
enum { NEAR_NONZERO = 0x850f, NOP_NEAR = 0xe990 }; // the opcodes of jumps by four bytes

#define ENTRY(name) {nfp_template_##name, nfp_template_end_##name, nfp_fields_##name, nfp_rows_##name}
const struct nfp_template nfp_templates[NFP_SHAPE_COUNT] = {
    [NFP_SHAPE_CALL] = ENTRY(call),
    [NFP_SHAPE_RECEIVE] = ENTRY(receive),
    [NFP_SHAPE_PACKETS] = ENTRY(packets),
    [NFP_SHAPE_BARE] = ENTRY(bare),
    [NFP_SHAPE_ENTER] = ENTRY(enter),
    [NFP_SHAPE_MARK] = ENTRY(mark),
    [NFP_SHAPE_EXIT] = ENTRY(exit),
    [NFP_SHAPE_COPY_0] = ENTRY(copy_0),
    [NFP_SHAPE_COPY_2] = ENTRY(copy_2),
    [NFP_SHAPE_COPY_4] = ENTRY(copy_4),
    [NFP_SHAPE_COPY_8] = ENTRY(copy_8),
    [NFP_SHAPE_COPY_16] = ENTRY(copy_16),
    [NFP_SHAPE_COPY_32] = ENTRY(copy_32),
    [NFP_SHAPE_COPY_64] = ENTRY(copy_64),
    [NFP_SHAPE_CALL_VALUE] = ENTRY(call_value),
    [NFP_SHAPE_ENTER_VALUE] = ENTRY(enter_value),
};

// The opcode of the jump that is taken when a receive function has received something.
static uint32_t jump_when(uint8_t when)
{
	static const uint8_t jumps[] = {
	    [NFP_WHEN_NONZERO] = JUMP_NONZERO, [NFP_WHEN_ZERO] = JUMP_ZERO, [NFP_WHEN_ALWAYS] = JUMP_SHORT};
	return when < sizeof(jumps) ? jumps[when] : JUMP_SHORT;
}

// The instruction that loads the argument which says the queue into ecx, from where the template keeps arguments: in a frame
// that has so many bytes below it.
static uint32_t load_queue(uint8_t argument, uint32_t below)
{
	const uint32_t mov_rdi = 0x00244c8b, next_argument = 8u << 24,
	               none = 0x00e18340; // and $0, %ecx, with a prefix: one instruction, too
	return argument < NFP_REGISTER_ARGUMENTS ? mov_rdi + argument * next_argument + (below << 24) : none;
}

uint32_t nfp_field_code(const struct nfp_template_field *field, const struct nfp_trampoline *values)
{
	if (field->kind == NFP_FIELD_WHEN)
		return jump_when(values->when);
	if (field->kind == NFP_FIELD_ALWAYS)
		return values->when == NFP_WHEN_ALWAYS ? NOP_NEAR : NEAR_NONZERO;
	return load_queue(values->queue_argument, field->argument);
}
