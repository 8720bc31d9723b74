// SPDX-License-Identifier: Apache-2.0
// Messages: writes what a broker's function is handed, a topic that ends with a zero byte. The payload is not
// looked at, and no more of the topic than NFP_TOPIC_READ_BYTES. Runs on the target's threads; called by capture.c.
#include "library.h"
#include "nfprobe/siphash.h"

static uint32_t topic_bytes(const char *topic)
{
	uint32_t bytes = 0;
	while (bytes < NFP_TOPIC_READ_BYTES && topic[bytes])
		bytes++;
	return bytes;
}

static uint64_t topic_digest(const char *topic, uint32_t bytes)
{
	struct nfp_siphash hash;
	nfp_siphash_init(nfp_library.header->digest_key, &hash);
	return nfp_siphash_finish(&hash, (const uint8_t *)topic, bytes);
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

void nfp_message_write(struct nfp_thread *thread, uint32_t function, const char *topic)
{
	if (!topic)
		return;
	uint32_t bytes = topic_bytes(topic), records = text_records(bytes);
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
