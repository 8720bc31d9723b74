// SPDX-License-Identifier: Apache-2.0
// Fills templates and writes the unwind rows of trampolines (DWARF 5 section 6.4, .eh_frame form).
#include "trampoline.h"
#include "abi/session.h"
#include <string.h>

struct field {
	uint16_t kind, offset, bytes, argument;
};
struct row {
	uint16_t offset, cfa, kind;
};
// In step with ROW_STACK and its neighbours in arch/x86_64/template.S, which says what they mean.
enum nfp_row { ROW_STACK, ROW_PUSHED, ROW_FRAME, ROW_LEFT };

#define DECLARE(name)                                                                                        \
	extern const uint8_t nfp_template_##name[], nfp_template_end_##name[];                               \
	extern const struct field nfp_fields_##name[];                                                       \
	extern const struct row nfp_rows_##name[]
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

enum { JUMP_SHORT = 0xeb, JUMP_ZERO = 0x74, JUMP_NONZERO = 0x75, JUMP_BYTES = 2 };
enum { NEAR_NONZERO = 0x850f, NOP_NEAR = 0xe990 }; // the opcodes of jumps by four bytes

struct template {
	const uint8_t *start, *end;
	const struct field *fields;
	const struct row *rows;
};

#define ENTRY(name) {nfp_template_##name, nfp_template_end_##name, nfp_fields_##name, nfp_rows_##name}
static const struct template templates[NFP_SHAPE_COUNT] = {
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

uint32_t nfp_trampoline_bytes(uint32_t shape)
{
	return shape < NFP_SHAPE_COUNT ? (uint32_t)(templates[shape].end - templates[shape].start) : 0;
}

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
	return argument < 6 ? mov_rdi + argument * next_argument + (below << 24) : none;
}

static uint32_t field_value(const struct field *field, const struct nfp_trampoline *values)
{
	switch (field->kind) {
	case NFP_FIELD_TLS:
		return (uint32_t)values->tls_offset;
	case NFP_FIELD_GATE:
		return values->gate | field->argument;
	case NFP_FIELD_TAG: // the template adds the low half of its slot's address
		return values->function | (uint32_t)field->argument << NFP_KIND_SHIFT;
	case NFP_FIELD_PROGRAM:
		return values->function | values->program << NFP_KIND_SHIFT;
	case NFP_FIELD_WHEN:
		return jump_when(values->when);
	case NFP_FIELD_DESCRIBE:
		return NFP_GATE_PACKETS | NFP_GATE_LATE |
		       (values->when == NFP_WHEN_ALWAYS ? values->gate : 0);
	case NFP_FIELD_ALWAYS:
		return values->when == NFP_WHEN_ALWAYS ? NOP_NEAR : NEAR_NONZERO;
	case NFP_FIELD_QUEUE:
		return load_queue(values->queue_argument, field->argument);
	default:
		return values->return_mask;
	}
}

// Puts the snippet at the start of its room, and behind it a jump to the room's end.
static void put_snippet(uint8_t *room, uint32_t room_bytes, const struct nfp_trampoline *values)
{
	uint32_t bytes = values->snippet_bytes;
	if (bytes > NFP_SNIPPET_BYTES_MAX || bytes + JUMP_BYTES > room_bytes)
		bytes = 0;
	memcpy(room, values->snippet, bytes);
	room[bytes] = JUMP_SHORT;
	room[bytes + 1] = (uint8_t)(room_bytes - bytes - JUMP_BYTES);
}

uint32_t nfp_trampoline_write(uint32_t shape, const struct nfp_trampoline *values, uint8_t *out,
                              uint32_t capacity)
{
	uint32_t bytes = nfp_trampoline_bytes(shape);
	if (bytes == 0 || bytes > capacity)
		return 0;
	memcpy(out, templates[shape].start, bytes);
	for (const struct field *field = templates[shape].fields; field->kind != 0xffff; field++) {
		if (field->kind == NFP_FIELD_SNIPPET) {
			put_snippet(out + field->offset, field->bytes, values);
			continue;
		}
		uint32_t value = field_value(field, values);
		memcpy(out + field->offset, &value, field->bytes);
	}
	return bytes;
}

enum {
	DW_CFA_NOP = 0x00,
	DW_CFA_ADVANCE_LOC1 = 0x02,
	DW_CFA_ADVANCE_LOC2 = 0x03,
	DW_CFA_SAME_VALUE = 0x08,
	DW_CFA_DEF_CFA = 0x0c,
	DW_CFA_OFFSET = 0x80,
	DW_EH_PE_ABSPTR = 0x00,
	RETURN_ADDRESS = 16,
	REGISTER_RBP = 6,
	REGISTER_RSP = 7,
};

// A bounded byte writer: `failed` is set when something did not fit.
struct writer {
	uint8_t *out;
	uint32_t used, capacity;
	int failed;
};

static void put(struct writer *writer, const void *bytes, uint32_t count)
{
	if (count > writer->capacity - writer->used) {
		writer->failed = 1;
		return;
	}
	memcpy(writer->out + writer->used, bytes, count);
	writer->used += count;
}

static void put_u8(struct writer *writer, uint8_t value)
{
	put(writer, &value, 1);
}

static void put_u32(struct writer *writer, uint32_t value)
{
	put(writer, &value, 4);
}

static void put_u64(struct writer *writer, uint64_t value)
{
	put(writer, &value, 8);
}

static void put_uleb(struct writer *writer, uint32_t value)
{
	for (; value > 127; value >>= 7)
		put_u8(writer, (uint8_t)(value | 128));
	put_u8(writer, (uint8_t)value);
}

static void put_advance(struct writer *writer, uint32_t distance)
{
	if (distance == 0)
		return;
	put_u8(writer, distance < 256 ? DW_CFA_ADVANCE_LOC1 : DW_CFA_ADVANCE_LOC2);
	if (distance < 256)
		put_u8(writer, (uint8_t)distance);
	else
		put(writer, &(uint16_t){(uint16_t)distance}, 2);
}

// Pads the entry that began at `start` to eight bytes and writes its length in front.
static void finish_entry(struct writer *writer, uint32_t start)
{
	while (!writer->failed && (writer->used - start) % 8 != 0)
		put_u8(writer, DW_CFA_NOP);
	if (writer->failed)
		return;
	uint32_t length = writer->used - start - 4;
	memcpy(writer->out + start, &length, 4);
}

uint32_t nfp_frame_common_write(uint8_t *out, uint32_t capacity)
{
	struct writer writer = {out, 0, capacity, 0};
	put_u32(&writer, 0); // length, filled in at the end
	put_u32(&writer, 0); // a common entry
	put_u8(&writer, 1);  // version
	put(&writer, "zR", 3);
	put_uleb(&writer, 1);   // code alignment
	put_u8(&writer, 0x78);  // data alignment -8
	put_u8(&writer, RETURN_ADDRESS);
	put_uleb(&writer, 1);   // augmentation bytes
	put_u8(&writer, DW_EH_PE_ABSPTR);
	put_u8(&writer, DW_CFA_DEF_CFA);
	put_uleb(&writer, REGISTER_RSP);
	put_uleb(&writer, 8);
	put_u8(&writer, DW_CFA_OFFSET | RETURN_ADDRESS);
	put_uleb(&writer, 1); // the return address is at cfa - 8
	finish_entry(&writer, 0);
	return writer.failed ? 0 : writer.used;
}

static uint32_t begin_entry(struct writer *writer, uint64_t address, uint64_t bytes, uint32_t common_distance)
{
	uint32_t start = writer->used;
	put_u32(writer, 0);
	put_u32(writer, common_distance + start + 4); // from this word back to the common entry
	put_u64(writer, address);
	put_u64(writer, bytes);
	put_uleb(writer, 0);
	return start;
}

static void put_row(struct writer *writer, const struct row *row)
{
	put_u8(writer, DW_CFA_DEF_CFA);
	put_uleb(writer, row->kind == ROW_FRAME ? REGISTER_RBP : REGISTER_RSP);
	put_uleb(writer, row->cfa);
	if (row->kind == ROW_PUSHED) {
		put_u8(writer, DW_CFA_OFFSET | REGISTER_RBP);
		put_uleb(writer, 2); // at cfa - 16
	} else if (row->kind == ROW_LEFT) {
		put_u8(writer, DW_CFA_SAME_VALUE);
		put_uleb(writer, REGISTER_RBP);
	}
}

uint32_t nfp_frame_write(uint32_t shape, uint64_t address, uint32_t displaced_bytes,
                         const struct nfp_cfa_row *rows, uint32_t row_count, uint32_t common_distance,
                         uint8_t *out, uint32_t capacity)
{
	struct writer writer = {out, 0, capacity, 0};
	uint32_t bytes = nfp_trampoline_bytes(shape);
	if (bytes == 0)
		return 0;
	uint32_t start = begin_entry(&writer, address, bytes, common_distance);
	uint32_t at = 0;
	for (const struct row *row = templates[shape].rows; row->offset != 0xffff; row++) {
		put_advance(&writer, row->offset - at);
		at = row->offset;
		put_row(&writer, row);
	}
	finish_entry(&writer, start);
	if (displaced_bytes == 0)
		return writer.failed ? 0 : writer.used;
	start = begin_entry(&writer, address + bytes, displaced_bytes, common_distance);
	at = 0;
	for (uint32_t i = 0; i < row_count; i++) {
		put_advance(&writer, rows[i].offset - at);
		at = rows[i].offset;
		put_u8(&writer, DW_CFA_DEF_CFA);
		put_uleb(&writer, rows[i].register_number);
		put_uleb(&writer, (uint32_t)rows[i].cfa_offset);
		if (rows[i].pushed < RETURN_ADDRESS) {
			put_u8(&writer, (uint8_t)(DW_CFA_OFFSET | rows[i].pushed));
			put_uleb(&writer, (uint32_t)rows[i].cfa_offset / 8);
		}
	}
	finish_entry(&writer, start);
	return writer.failed ? 0 : writer.used;
}
