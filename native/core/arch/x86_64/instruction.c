// SPDX-License-Identifier: Apache-2.0
#include "instruction.h"
#include "reader.h"

enum { INSTRUCTION_BYTES_MAX = 15 };

static void take_prefixes(struct reader *reader)
{
	struct prefixes *prefixes = &reader->prefixes;
	for (; reader->position < reader->available; reader->position++, prefixes->count++) {
		uint8_t byte = reader->code[reader->position];
		if (byte == 0x66)
			prefixes->operand_size = true;
		else if (byte == 0xf0)
			prefixes->lock = true;
		else if ((byte & 0xe7) == 0x26 || (byte & 0xfe) == 0x64)
			prefixes->segment = true;
		else if (byte == 0x67)
			prefixes->address_size = true;
		else if (byte == 0xf2 || byte == 0xf3) {
			reader->failed |= prefixes->repeat && prefixes->repeat != byte;
			prefixes->repeat = byte;
		} else
			break;
	}
	if (reader->position < reader->available && (reader->code[reader->position] & 0xf0) == 0x40)
		prefixes->rex = reader->code[reader->position++];
}

uint32_t nfp_instruction_decode(const uint8_t *code, uint64_t available, uint64_t address,
                                struct nfp_decoded *out)
{
	struct reader reader = {
	    .code = code,
	    .available = available < INSTRUCTION_BYTES_MAX ? (uint32_t)available : INSTRUCTION_BYTES_MAX,
	    .out = out,
	};
	*out = (struct nfp_decoded){.base = NFP_REGISTER_NONE,
	                            .index = NFP_REGISTER_NONE,
	                            .to = NFP_REGISTER_NONE,
	                            .from = NFP_REGISTER_NONE};
	take_prefixes(&reader);
	nfp_opcode_take(&reader);
	if (reader.failed)
		return 0;
	name(&reader, out->base);
	name(&reader, out->index);
	uint64_t next = address + reader.position;
	if (out->kind == NFP_DECODED_BRANCH || out->kind == NFP_DECODED_CALL)
		out->target += next;
	else if (out->base == NFP_REGISTER_NEXT)
		out->target = next + (uint64_t)out->displacement;
	out->bytes = (uint8_t)reader.position;
	return reader.position;
}

uint64_t nfp_instructions_decode(const uint8_t *code, uint64_t available, uint64_t address,
                                 struct nfp_decoded *out, uint64_t room)
{
	uint64_t count = 0;
	while (available && count < room) {
		uint32_t bytes = nfp_instruction_decode(code, available, address, out + count);
		if (!bytes)
			break;
		count++;
		code += bytes;
		address += bytes;
		available -= bytes;
	}
	return count;
}

bool nfp_instruction_is_padding(const uint8_t *code, uint32_t bytes)
{
	while (bytes > 1 && (*code == 0x66 || *code == 0x2e)) {
		code++;
		bytes--;
	}
	// Others of 0f 1f are reserved.
	return *code == 0x90 || (bytes > 2 && code[0] == 0x0f && code[1] == 0x1f && !(code[2] & 0x38));
}
