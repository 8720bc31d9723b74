// SPDX-License-Identifier: Apache-2.0
// See topics.h. Two tables: when the newer one is full it becomes the older one.
#include "topics.h"
#include <string.h>

enum { TOPICS_FIRST = 64, DOTS = 3 };

static int is_free(const void *row)
{
	return !((const struct nfp_topic_entry *)row)->used;
}

static const struct nfp_rows topic_rows = {
    .bytes = sizeof(struct nfp_topic_entry), .first = TOPICS_FIRST, .is_free = is_free};

static struct nfp_topic_entry *find_in(const struct nfp_table *table, uint64_t digest)
{
	return nfp_table_find(table, &topic_rows, digest);
}

// Bytes of the UTF-8 character at `text`, or 0 when it is none that is whole and valid.
static uint32_t character_bytes(const uint8_t *text, uint32_t bytes)
{
	uint8_t first = text[0];
	uint32_t size = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >> 4 == 14 ? 3 : 4;
	if (size > bytes || (size == 4 && (first < 0xf0 || first > 0xf4)))
		return 0;
	for (uint32_t i = 1; i < size; i++)
		if (text[i] >> 6 != 2)
			return 0;
	if (first == 0xe0 && text[1] < 0xa0) // longer than it need be
		return 0;
	if (first == 0xed && text[1] > 0x9f) // a surrogate
		return 0;
	if ((first == 0xf0 && text[1] < 0x90) || (first == 0xf4 && text[1] > 0x8f))
		return 0;
	return size;
}

// Spans hold valid UTF-8 only, and a long topic was cut anywhere.
static void write_text(struct nfp_topic *topic, const struct nfp_topic_reader *reader)
{
	int cut = reader->topic_bytes > reader->bytes;
	uint32_t room = NFP_TOPIC_TEXT_BYTES - (cut ? DOTS : 0), size = 0;
	for (uint32_t i = 0; i < reader->bytes;) {
		uint32_t bytes = character_bytes(reader->text + i, reader->bytes - i);
		if (size + (bytes ? bytes : 1) > room || (!bytes && cut && i + 4 > reader->bytes))
			break;
		if (bytes)
			memcpy(topic->text + size, reader->text + i, bytes);
		else
			topic->text[size] = '?';
		size += bytes ? bytes : 1;
		i += bytes ? bytes : 1;
	}
	if (cut)
		memcpy(topic->text + size, "...", DOTS);
	topic->size = size + (cut ? DOTS : 0);
}

void nfp_topics_init(struct nfp_topics *topics)
{
	nfp_hash_init(&topics->newest.hash);
	topics->older.hash = topics->newest.hash;
}

void nfp_topics_deinit(struct nfp_topics *topics)
{
	nfp_table_deinit(&topics->newest);
	nfp_table_deinit(&topics->older);
}

void nfp_topics_add(struct nfp_topics *topics, uint64_t digest, const struct nfp_topic_reader *reader)
{
	struct nfp_table *newest = &topics->newest;
	if (newest->capacity && find_in(newest, digest)->used)
		return;
	if (newest->count >= NFP_TOPICS_MAX) {
		nfp_table_deinit(&topics->older);
		topics->older = *newest;
		*newest = (struct nfp_table){.hash = newest->hash};
	}
	if (!nfp_table_make_room(newest, &topic_rows))
		return;
	struct nfp_topic_entry *entry = find_in(newest, digest);
	*entry = (struct nfp_topic_entry){.topic = {.digest = digest}, .used = 1, .given = UINT64_MAX};
	write_text(&entry->topic, reader);
	newest->count++;
}

struct nfp_topic_entry *nfp_topics_find(struct nfp_topics *topics, uint64_t digest)
{
	struct nfp_table *tables[] = {&topics->newest, &topics->older};
	for (int i = 0; i < 2; i++) {
		struct nfp_topic_entry *entry = tables[i]->capacity ? find_in(tables[i], digest) : NULL;
		if (entry && entry->used)
			return entry;
	}
	return NULL;
}
