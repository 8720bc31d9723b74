// SPDX-License-Identifier: Apache-2.0
// Protobuf fields as bytes: varints, fixed words and OTLP KeyValue attributes, inline because they are the
// encoder's inner loop. Writers copy whole 32-byte blocks: the caller keeps NFP_WIRE_SLACK bytes free behind.
#ifndef NFPROBE_OTLP_WIRE_H
#define NFPROBE_OTLP_WIRE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { NFP_WIRE_SLACK = 32, NFP_WIRE_VARINT_MAX = 10, NFP_WIRE_STRING_MAX = 84 };

// The name of an attribute. At most 32 bytes, so that no length in a KeyValue needs a second byte.
struct nfp_key {
	uint8_t size;
	char name[NFP_WIRE_SLACK];
};
#define NFP_KEY(text) {sizeof(text) - 1, text}

static inline uint8_t *nfp_wire_varint(uint8_t *p, uint64_t value)
{
	while (value > 127) {
		*p++ = (uint8_t)value | 128;
		value >>= 7;
	}
	*p++ = (uint8_t)value;
	return p;
}

static inline uint32_t nfp_wire_varint_size(uint64_t value)
{
	uint32_t bits = 64 - (uint32_t)__builtin_clzll(value | 1);
	return (bits * 9 + 64) / 64;
}

// A field of wire type 1: tag byte and eight bytes, lowest first.
static inline uint8_t *nfp_wire_fixed64(uint8_t *p, uint8_t tag, uint64_t value)
{
	*p++ = tag;
	memcpy(p, &value, 8);
	return p + 8;
}

static inline uint8_t *nfp_wire_big64(uint8_t *p, uint64_t value)
{
	value = __builtin_bswap64(value);
	memcpy(p, &value, 8);
	return p + 8;
}

static inline uint8_t *nfp_wire_bytes(uint8_t *p, const void *bytes, size_t size)
{
	memcpy(p, bytes, size);
	return p + size;
}

// Span.attributes: 4a size (KeyValue) | 0a size key | 12 size (AnyValue); the value's bytes follow.
static inline uint8_t *nfp_wire_key(uint8_t *p, const struct nfp_key *key, uint32_t value_size)
{
	p[0] = 0x4a;
	p[1] = (uint8_t)(key->size + 4 + value_size);
	p[2] = 0x0a;
	p[3] = key->size;
	memcpy(p + 4, key->name, NFP_WIRE_SLACK);
	p += 4 + key->size;
	p[0] = 0x12;
	p[1] = (uint8_t)value_size;
	return p + 2;
}

static inline uint8_t *nfp_wire_int(uint8_t *p, const struct nfp_key *key, uint64_t value)
{
	p = nfp_wire_key(p, key, 1 + nfp_wire_varint_size(value));
	*p++ = 0x18;
	return nfp_wire_varint(p, value);
}

static inline uint8_t *nfp_wire_double(uint8_t *p, const struct nfp_key *key, double value)
{
	p = nfp_wire_key(p, key, 9);
	*p++ = 0x21;
	return nfp_wire_bytes(p, &value, 8);
}

static inline uint8_t *nfp_wire_bool(uint8_t *p, const struct nfp_key *key, int value)
{
	p = nfp_wire_key(p, key, 2);
	p[0] = 0x10;
	p[1] = value != 0;
	return p + 2;
}

static inline uint8_t *nfp_wire_true(uint8_t *p, const struct nfp_key *key)
{
	return nfp_wire_bool(p, key, 1);
}

// size is at most NFP_WIRE_STRING_MAX.
static inline uint8_t *nfp_wire_string(uint8_t *p, const struct nfp_key *key, const char *text, size_t size)
{
	p = nfp_wire_key(p, key, 2 + (uint32_t)size);
	p[0] = 0x0a;
	p[1] = (uint8_t)size;
	return nfp_wire_bytes(p + 2, text, size);
}

// Sixteen hexadecimal digits, as a packet id is written everywhere.
static inline uint8_t *nfp_wire_hex(uint8_t *p, const struct nfp_key *key, uint64_t value)
{
	char digits[16];
	for (int i = 0; i < 16; i++)
		digits[i] = "0123456789abcdef"[value >> (60 - 4 * i) & 15];
	return nfp_wire_string(p, key, digits, 16);
}

// An attribute whose value is an array: `start` is kept for nfp_wire_array_end, and what is returned is where its values
// are written, each as nfp_wire_array_string or nfp_wire_array_int.
enum { NFP_WIRE_ARRAY_HEAD = 1 + 4 + 2 + NFP_WIRE_SLACK + 2 * (1 + 4) };

static inline uint8_t *nfp_wire_array_begin(uint8_t *start)
{
	return start + NFP_WIRE_ARRAY_HEAD;
}

// ArrayValue.values: 0a size (AnyValue) | 0a size text
static inline uint8_t *nfp_wire_array_string(uint8_t *p, const char *text, size_t size)
{
	*p++ = 0x0a;
	p = nfp_wire_varint(p, 1 + nfp_wire_varint_size(size) + size);
	*p++ = 0x0a;
	return nfp_wire_bytes(nfp_wire_varint(p, size), text, size);
}

static inline uint8_t *nfp_wire_array_int(uint8_t *p, uint64_t value)
{
	p[0] = 0x0a;
	p[1] = (uint8_t)(1 + nfp_wire_varint_size(value));
	p[2] = 0x18;
	return nfp_wire_varint(p + 3, value);
}

// Writes what stands before the values, of which `p` is the end, and moves them there. Returns the end. At most 2 MiB.
static inline uint8_t *nfp_wire_array_end(uint8_t *start, uint8_t *p, const struct nfp_key *key)
{
	const uint8_t *values = start + NFP_WIRE_ARRAY_HEAD;
	size_t size = (size_t)(p - values), array = 1 + nfp_wire_varint_size(size) + size;
	*start++ = 0x4a;
	start = nfp_wire_varint(start, 2 + key->size + 1 + nfp_wire_varint_size(array) + array);
	start[0] = 0x0a;
	start[1] = key->size;
	start = nfp_wire_bytes(start + 2, key->name, key->size);
	*start++ = 0x12; // KeyValue.value
	start = nfp_wire_varint(start, array);
	*start++ = 0x2a; // AnyValue.array_value
	start = nfp_wire_varint(start, size);
	memmove(start, values, size);
	return start + size;
}
#endif
