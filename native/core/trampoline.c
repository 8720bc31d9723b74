// SPDX-License-Identifier: Apache-2.0
// Fills templates and writes the unwind rows of trampolines (DWARF 5 section 6.4, .eh_frame form).
#include "trampoline.h"
#include "abi/session.h"
#include "arch/arch.h"
#include <string.h>

uint32_t nfp_trampoline_bytes(uint32_t shape)
{
	return shape < NFP_SHAPE_COUNT ? (uint32_t)(nfp_templates[shape].end - nfp_templates[shape].start)
	                               : 0;
}

static uint32_t field_value(const struct nfp_template_field *field, const struct nfp_trampoline *values)
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
	case NFP_FIELD_DESCRIBE:
		return NFP_GATE_PACKETS | NFP_GATE_LATE |
		       (values->when == NFP_WHEN_ALWAYS ? values->gate : 0);
	case NFP_FIELD_WHEN:
	case NFP_FIELD_ALWAYS:
	case NFP_FIELD_QUEUE:
		return nfp_field_code(field, values);
	default:
		return values->return_mask;
	}
}

// Puts the snippet at the start of its room, and behind it a jump to the room's end.
static void put_snippet(uint8_t *room, uint32_t room_bytes, const struct nfp_trampoline *values)
{
	uint32_t bytes = values->snippet_bytes;
	if (bytes > NFP_SNIPPET_BYTES_MAX || bytes + NFP_SKIP_BYTES > room_bytes)
		bytes = 0;
	memcpy(room, values->snippet, bytes);
	nfp_skip_write(room + bytes, room_bytes - bytes - NFP_SKIP_BYTES);
}

uint32_t nfp_trampoline_write(uint32_t shape, const struct nfp_trampoline *values, uint8_t *out,
                              uint32_t capacity)
{
	uint32_t bytes = nfp_trampoline_bytes(shape);
	if (bytes == 0 || bytes > capacity)
		return 0;
	memcpy(out, nfp_templates[shape].start, bytes);
	for (const struct nfp_template_field *field = nfp_templates[shape].fields; field->kind != 0xffff;
	     field++) {
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
	put_u8(&writer, NFP_DWARF_RETURN);
	put_uleb(&writer, 1);   // augmentation bytes
	put_u8(&writer, DW_EH_PE_ABSPTR);
	put(&writer, NFP_DWARF_AT_ENTRY, sizeof(NFP_DWARF_AT_ENTRY));
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

static void put_row(struct writer *writer, const struct nfp_template_row *row)
{
	put_u8(writer, DW_CFA_DEF_CFA);
	put_uleb(writer, row->kind == NFP_ROW_FRAME ? NFP_DWARF_FRAME : NFP_DWARF_SP);
	put_uleb(writer, row->cfa);
	if (row->kind == NFP_ROW_PUSHED) {
		put_u8(writer, DW_CFA_OFFSET | NFP_DWARF_FRAME);
		put_uleb(writer, 2); // at cfa - 16
	} else if (row->kind == NFP_ROW_LEFT) {
		put_u8(writer, DW_CFA_SAME_VALUE);
		put_uleb(writer, NFP_DWARF_FRAME);
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
	for (const struct nfp_template_row *row = nfp_templates[shape].rows; row->offset != 0xffff; row++) {
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
		if (rows[i].pushed < NFP_DWARF_RETURN) {
			put_u8(&writer, (uint8_t)(DW_CFA_OFFSET | rows[i].pushed));
			put_uleb(&writer, (uint32_t)rows[i].cfa_offset / 8);
		}
	}
	finish_entry(&writer, start);
	return writer.failed ? 0 : writer.used;
}
