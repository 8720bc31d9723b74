// SPDX-License-Identifier: Apache-2.0
// The trampoline: a template of arch/ with its fields filled in, followed by the displaced
// instructions of the function, and the unwind rows that describe it. Pure: writes only the caller's
// buffers. Called by otel_nfprobe/probes/trampoline.py, which maps those buffers executable in the target.
#ifndef NFPROBE_TRAMPOLINE_H
#define NFPROBE_TRAMPOLINE_H
#include <stdint.h>

// cdef begin
enum { NFP_PUSHED_NONE = 255 };
enum { NFP_SNIPPET_BYTES_MAX = 126 }; // and NFP_SKIP_BYTES for the jump behind it

enum nfp_shape {
	NFP_SHAPE_CALL = 0,
	NFP_SHAPE_RECEIVE = 1,
	NFP_SHAPE_PACKETS = 2,
	NFP_SHAPE_BARE = 3, // two time stamps stored and never read: the reference of benchmarks
	NFP_SHAPE_ENTER = 4, // entry of a relocated body, which follows
	NFP_SHAPE_MARK = 5,  // entry only; the displaced instructions follow
	NFP_SHAPE_EXIT = 6,  // exit of a relocated body; the return or jump follows
	NFP_SHAPE_COPY_2 = 7, // as CALL, with so many words of stack arguments copied
	NFP_SHAPE_COPY_4 = 8,
	NFP_SHAPE_COPY_8 = 9,
	NFP_SHAPE_COPY_16 = 10,
	NFP_SHAPE_COPY_32 = 11,
	NFP_SHAPE_COPY_64 = 12,
	NFP_SHAPE_CALL_VALUE = 13, // as CALL and ENTER, with a snippet that captures a value
	NFP_SHAPE_ENTER_VALUE = 14,
	NFP_SHAPE_COPY_0 = 15, // for functions that begin with a frame of their own
	NFP_SHAPE_COUNT = 16 // a shape has four bits in the probe table
};

struct nfp_trampoline {
	int32_t tls_offset;   // of the thread block pointer from the thread base
	uint32_t function;    // function id
	uint32_t program;     // index of its capture program
	uint32_t return_mask; // valid bits of a receive function's return value
	uint8_t gate;         // gate bits that open it
	uint8_t when; // enum nfp_when, of a receive function; NFP_WHEN_ALWAYS, too, counts at the entry
	uint8_t queue_argument; // of a receive function: which queue it polls, or NFP_ABSENT
	uint8_t snippet_bytes;
	uint8_t snippet[NFP_SNIPPET_BYTES_MAX]; // leaves a value where functions return theirs
};

// A change of the rule for the canonical frame address inside the displaced instructions.
struct nfp_cfa_row {
	uint32_t offset; // from the first displaced instruction in the trampoline
	uint32_t register_number; // DWARF number
	int32_t cfa_offset;
	uint32_t
	    pushed; // DWARF number of the register that a push stored at cfa - cfa_offset, or NFP_PUSHED_NONE
};

// Bytes of the template, that is the offset of the displaced instructions; 0 for an unknown shape.
uint32_t nfp_trampoline_bytes(uint32_t shape);
// Writes the template with its fields filled in. Returns its bytes, or 0 when it does not fit.
uint32_t nfp_trampoline_write(uint32_t shape, const struct nfp_trampoline *values, uint8_t *out,
                              uint32_t capacity);
// Writes the common unwind entry (CIE) that nfp_frame_write refers to. Returns its bytes, or 0.
uint32_t nfp_frame_common_write(uint8_t *out, uint32_t capacity);
// Writes two unwind entries (FDE): the template at `address` and the displaced instructions behind it; one
// where `displaced_bytes` is 0.
// `common_distance` is the number of bytes from the common entry to `out`. Returns bytes, or 0.
uint32_t nfp_frame_write(uint32_t shape, uint64_t address, uint32_t displaced_bytes,
                         const struct nfp_cfa_row *rows, uint32_t row_count, uint32_t common_distance,
                         uint8_t *out, uint32_t capacity);
// cdef end

enum nfp_field {
	NFP_FIELD_TLS,
	NFP_FIELD_GATE,
	NFP_FIELD_TAG,
	NFP_FIELD_PROGRAM,
	NFP_FIELD_RETURN_MASK,
	NFP_FIELD_SNIPPET,
	NFP_FIELD_WHEN,
	NFP_FIELD_DESCRIBE,
	NFP_FIELD_QUEUE,
	NFP_FIELD_ALWAYS
};

// Kinds of unwind rows; in step with ROW_STACK and its neighbours in template_macros.inc.
enum nfp_row {
	NFP_ROW_STACK, // the canonical frame address is stack pointer + cfa
	NFP_ROW_PUSHED, // the same, and the frame pointer has been pushed, to cfa - 16
	NFP_ROW_FRAME, // it is frame pointer + cfa
	NFP_ROW_LEFT, // it is stack pointer + cfa again, and the frame pointer is the caller's
};

struct nfp_template_field {
	uint16_t kind, offset, bytes, argument; // enum nfp_field
};
struct nfp_template_row {
	uint16_t offset, cfa, kind; // enum nfp_row
};
struct nfp_template {
	const uint8_t *start, *end; // the same where the processor has no template of this shape
	const struct nfp_template_field *fields;
	const struct nfp_template_row *rows;
};
#endif
