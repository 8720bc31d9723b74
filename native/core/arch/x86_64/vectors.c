// SPDX-License-Identifier: Apache-2.0
// Instructions with a VEX or EVEX prefix, as compilers write them (Intel SDM volume 2, sections 2.3 and 2.7). Not those
// that gather or scatter, or round in a way of their own.
#include "reader.h"
#include "vectoropcodes.h"

enum {
	VEX_SHORT = 0xc5,
	EVEX = 0x62,
	VEX_ZERO = 0x77, // vzeroupper, vzeroall
	MAP_MAX = 3,
	IN_MEMORY = 0, // where the masks of combinations are in the number of an opcode
	BROADCAST = 6,
	IN_REGISTER = 12,
	MASK_BITS = 63,
	FIELDS_AT = 18,
	FLAGS_AT = 26,
	SCALE_AT = 33,
	KEY_AT = 40,
	BROADCAST_SCALES_AT = 24,
	VVVV_UNUSED = 31,
};

struct vector {
	uint32_t map, prefix, length, mask;
	bool is_evex, wide, zero, broadcast;
	bool is_low; // no register but the first eight is named by the prefix, but for `other`
	uint32_t other; // vvvv with its high bit, inverted
};

static void take_vex(struct reader *reader, uint8_t first, struct vector *vector)
{
	uint8_t byte = take_byte(reader), last = byte;
	vector->map = 1;
	uint8_t extensions = byte >> 5 & 4;
	if (first != VEX_SHORT) {
		last = take_byte(reader);
		vector->map = byte & 31;
		extensions = byte >> 5;
		vector->wide = last >> 7;
	} else {
		extensions |= REX_X | REX_B; // as inverted as the others
	}
	reader->prefixes.rex = (uint8_t)~extensions & (REX_R | REX_X | REX_B);
	vector->is_low = !reader->prefixes.rex;
	vector->other = 16 | (last >> 3 & 15);
	vector->length = last >> 2 & 1;
	vector->prefix = last & 3;
}

static void take_evex(struct reader *reader, struct vector *vector)
{
	uint8_t first = take_byte(reader), second = take_byte(reader), third = take_byte(reader);
	reader->failed |= (first & 8) || !(second & 4);
	vector->is_evex = true;
	vector->map = first & 7;
	vector->wide = second >> 7;
	vector->other = (third & 8 ? 16 : 0) | (second >> 3 & 15);
	vector->prefix = second & 3;
	vector->zero = third >> 7;
	vector->length = third >> 5 & 3;
	vector->broadcast = third >> 4 & 1;
	vector->mask = third & 7;
	reader->prefixes.rex = (uint8_t)~(first >> 5) & (REX_R | REX_X | REX_B);
	vector->is_low = !reader->prefixes.rex && (first & 16);
}

// The number of an opcode in vector_opcodes, or 0.
static uint64_t find_opcode(const struct vector *vector, uint8_t opcode)
{
	uint64_t key = (uint64_t)vector->is_evex << 12 | vector->map << 10 | vector->prefix << 8 | opcode;
	size_t low = 0, high = sizeof(vector_opcodes) / sizeof(*vector_opcodes);
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (vector_opcodes[middle] >> KEY_AT < key)
			low = middle + 1;
		else
			high = middle;
	}
	bool is_there =
	    low < sizeof(vector_opcodes) / sizeof(*vector_opcodes) && vector_opcodes[low] >> KEY_AT == key;
	return is_there ? vector_opcodes[low] : 0;
}

// Whether the prefix fits to what the opcode and ModRM say.
static bool fits(const struct vector *vector, uint64_t opcode, const struct reader *reader)
{
	bool in_register = is_register_mode(reader);
	uint32_t flags = (uint32_t)(opcode >> FLAGS_AT);
	uint32_t uses = flags & (in_register ? VECTOR_USES_IN_REGISTER : VECTOR_USES_IN_MEMORY);
	uint32_t zero = flags & (in_register ? VECTOR_ZERO_IN_REGISTER : VECTOR_ZERO_IN_MEMORY);
	uint32_t place = in_register ? IN_REGISTER : vector->broadcast ? BROADCAST : IN_MEMORY;
	if (vector->length > 2 || (in_register && vector->broadcast))
		return false;
	if (!(opcode >> place & MASK_BITS & 1u << (3 * vector->wide + vector->length)))
		return false;
	if (!(opcode >> FIELDS_AT & 1u << modrm_reg(reader)))
		return false;
	if (!uses && vector->other != VVVV_UNUSED)
		return false;
	if (flags & VECTOR_LOW && !(vector->is_low && (vector->other & 24) == 24))
		return false;
	if (vector->zero && !(vector->mask && zero))
		return false;
	return !vector->mask || flags & VECTOR_MASK;
}

// Whether an operand besides that in memory may be a general register: those of BMI and CMPCCXADD, and moves between both kinds.
static bool names_general(const struct vector *vector, uint8_t opcode)
{
	switch (vector->map) {
	case 1:
		return strchr("\x2a\x2c\x2d\x50\x6e\x78\x79\x7b\x7e\x92\x93\xc4\xc5\xd7", opcode) && opcode;
	case 2:
		return (opcode >= 0xe0 && opcode <= 0xf7) || (opcode >= 0x7a && opcode <= 0x7c);
	default:
		return opcode == 0xf0 || (opcode >= 0x14 && opcode <= 0x17) || opcode == 0x20 ||
		       opcode == 0x22;
	}
}

void nfp_vector_take(struct reader *reader, uint8_t first)
{
	const struct prefixes *prefixes = &reader->prefixes;
	struct vector vector = {0};
	reader->failed |= prefixes->operand_size || prefixes->lock || prefixes->repeat || prefixes->rex;
	if (first == EVEX)
		take_evex(reader, &vector);
	else
		take_vex(reader, first, &vector);
	uint8_t code = take_byte(reader);
	if (!vector.is_evex && vector.map == 1 && !vector.prefix && code == VEX_ZERO) {
		reader->failed |= vector.other != VVVV_UNUSED || prefixes->address_size;
		return;
	}
	uint64_t opcode = vector.map && vector.map <= MAP_MAX ? find_opcode(&vector, code) : 0;
	take_modrm(reader);
	if (reader->failed || !opcode || !fits(&vector, opcode, reader)) {
		reader->failed = true;
		return;
	}
	if (vector.is_evex && reader->modrm >> 6 == 1) {
		uint64_t scales = vector_scales[opcode >> SCALE_AT & 127];
		uint32_t place =
		    (vector.broadcast ? BROADCAST_SCALES_AT : 0) + 4 * (3 * vector.wide + vector.length);
		reader->out->displacement *= INT64_C(1) << (scales >> place & 15);
	}
	skip(reader, opcode >> FLAGS_AT & VECTOR_BYTE ? 1 : 0);
	if (!names_general(&vector, code))
		return;
	name(reader, reg_register(reader));
	name(reader, rm_register(reader));
	name(reader, ~vector.other & 15);
}
