// SPDX-License-Identifier: Apache-2.0
// Messages: writes what a broker's function is handed, a topic that ends with a zero byte. The payload is not
// looked at, and no more of the topic than NFP_TOPIC_READ_BYTES. Texts that say what a call is done for, which end in this
// way or are vectors, are written in the same way. Runs on the target's threads; called by capture.c.
#include "describe.h"
#include "library.h"
#include "abi/headers.h"
#include "abi/siphash.h"

static uint32_t topic_bytes(const char *topic)
{
	uint32_t bytes = 0;
	while (bytes < NFP_TOPIC_READ_BYTES && topic[bytes])
		bytes++;
	return bytes;
}

static uint64_t topic_digest(const char *topic, uint32_t bytes)
{
	return nfp_siphash_bytes(nfp_library.header->digest_key, (const uint8_t *)topic, bytes);
}

static uint32_t text_records(uint32_t bytes)
{
	uint32_t records = (bytes + NFP_TEXT_BYTES - 1) / NFP_TEXT_BYTES;
	return records < NFP_TOPIC_RECORDS ? records : NFP_TOPIC_RECORDS;
}

static struct nfp_record *put_text(struct nfp_record *slot, uint32_t function, const char *text,
                                   uint32_t bytes)
{
	uint8_t piece[16] = {0};
	uint64_t word;
	uint32_t rest;
	for (uint32_t i = 0; i < bytes && i < NFP_TEXT_BYTES; i++)
		piece[i] = (uint8_t)text[i];
	__builtin_memcpy(&word, piece, 8);
	__builtin_memcpy(&rest, piece + 8, 4);
	return nfp_put(slot, word, function | (uint32_t)NFP_PACKET_TEXT << NFP_KIND_SHIFT, rest);
}

static void write(struct nfp_thread *thread, uint32_t function, const char *topic, uint32_t bytes)
{
	uint32_t records = text_records(bytes);
	struct nfp_record *slot = nfp_reserve(thread, 3 + records, NFP_LOST_PACKET);
	if (!slot)
		return;
	slot =
	    nfp_put(slot, (uint64_t)(uintptr_t)topic, function | (uint32_t)NFP_PACKET << NFP_KIND_SHIFT, 0);
	slot = nfp_put(slot, topic_digest(topic, bytes), function | (uint32_t)NFP_PACKET_ID << NFP_KIND_SHIFT,
	               (uint32_t)NFP_VERSION_MESSAGE << NFP_PACKET_VERSION_SHIFT);
	slot = nfp_put(slot, 0, function | (uint32_t)NFP_PACKET_TOPIC << NFP_KIND_SHIFT, bytes);
	for (uint32_t i = 0; i < records; i++)
		slot = put_text(slot, function, topic + i * NFP_TEXT_BYTES, bytes - i * NFP_TEXT_BYTES);
}

void nfp_message_write(struct nfp_thread *thread, uint32_t function, const char *topic)
{
	if (topic)
		write(thread, function, topic, topic_bytes(topic));
}

// A text that may be anywhere: up to its zero byte, or the end of what can be read.
static uint32_t readable_bytes(uint64_t text)
{
	uint32_t bytes = 0;
	while (bytes < NFP_TOPIC_READ_BYTES && nfp_is_readable(text + bytes, 1) &&
	       *(const char *)(uintptr_t)(text + bytes))
		bytes++;
	return bytes;
}

// A vector has its length eight bytes before its first element.
static uint32_t vector_bytes(uint64_t vector)
{
	if (!vector || !nfp_is_readable(vector - 8, sizeof(uint32_t)))
		return 0;
	uint32_t bytes = nfp_load_32((const uint8_t *)(uintptr_t)(vector - 8));
	bytes = nfp_smaller(bytes, NFP_TOPIC_READ_BYTES);
	return nfp_is_readable(vector, bytes) ? bytes : 0;
}

static int is_blank(char character)
{
	return character == ' ' || character == '\n' || character == '\r' || !character;
}

void nfp_text_write(struct nfp_thread *thread, uint32_t function, uint64_t text, int is_vector)
{
	if (!text || (is_vector && !nfp_is_readable(text, sizeof(uint64_t))))
		return;
	if (is_vector)
		text = nfp_load_64((const uint8_t *)(uintptr_t)text);
	uint32_t bytes = is_vector ? vector_bytes(text) : readable_bytes(text);
	const char *start = (const char *)(uintptr_t)text;
	while (bytes && is_blank(start[bytes - 1]))
		bytes--;
	for (; bytes && is_blank(*start); start++)
		bytes--;
	if (bytes)
		write(thread, function, start, bytes);
}
