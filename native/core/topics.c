// SPDX-License-Identifier: Apache-2.0
// See topics.h. Two tables with linear probing: when the newer one is full it becomes the older one.
#include "topics.h"
#include <stdlib.h>
#include <string.h>

enum { TOPICS_FIRST = 64, DOTS = 3 };

static struct nfp_topic_entry *find_in(const struct nfp_topics *topics, const struct nfp_topic_table *table,
                                       uint64_t digest)
{
	uint32_t mask = table->capacity - 1;
	uint32_t i = nfp_hash_of(&topics->hash, digest) & mask;
	while (table->items[i].used && table->items[i].topic.digest != digest)
		i = (i + 1) & mask;
	return &table->items[i];
}

static int make_larger(const struct nfp_topics *topics, struct nfp_topic_table *table)
{
	struct nfp_topic_table larger = {.count = table->count,
	                                 .capacity = table->capacity ? 2 * table->capacity : TOPICS_FIRST};
	larger.items = calloc(larger.capacity, sizeof(*larger.items));
	if (!larger.items)
		return 0;
	for (uint32_t i = 0; i < table->capacity; i++)
		if (table->items[i].used)
			*find_in(topics, &larger, table->items[i].topic.digest) = table->items[i];
	free(table->items);
	*table = larger;
	return 1;
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

void nfp_topics_deinit(struct nfp_topics *topics)
{
	free(topics->newest.items);
	free(topics->older.items);
	*topics = (struct nfp_topics){0};
}

void nfp_topics_add(struct nfp_topics *topics, uint64_t digest, const struct nfp_topic_reader *reader)
{
	struct nfp_topic_table *newest = &topics->newest;
	if (newest->capacity && find_in(topics, newest, digest)->used)
		return;
	if (newest->count >= NFP_TOPICS_MAX) {
		free(topics->older.items);
		topics->older = *newest;
		*newest = (struct nfp_topic_table){0};
	}
	if (2 * newest->count >= newest->capacity && !make_larger(topics, newest))
		return;
	struct nfp_topic_entry *entry = find_in(topics, newest, digest);
	*entry = (struct nfp_topic_entry){.topic = {.digest = digest}, .used = 1, .given = UINT64_MAX};
	write_text(&entry->topic, reader);
	newest->count++;
}

struct nfp_topic_entry *nfp_topics_find(struct nfp_topics *topics, uint64_t digest)
{
	struct nfp_topic_table *tables[] = {&topics->newest, &topics->older};
	for (int i = 0; i < 2; i++) {
		struct nfp_topic_entry *entry =
		    tables[i]->capacity ? find_in(topics, tables[i], digest) : NULL;
		if (entry && entry->used)
			return entry;
	}
	return NULL;
}
