// SPDX-License-Identifier: Apache-2.0
// Topics: the texts of the messages that a pipeline has seen, found by digest, so that a packet need not carry
// one. Holds the newest 32,768 to 65,536; no I/O. Never in cffi.
#ifndef NFPROBE_TOPICS_H
#define NFPROBE_TOPICS_H
#include "columns.h"
#include "table.h"

enum { NFP_TOPICS_MAX = 32768 };

struct nfp_topic_entry {
	struct nfp_topic topic;
	uint64_t given; // number of the take that has it
	uint32_t used;
	uint32_t reserved;
};

struct nfp_topics {
	struct nfp_table newest, older; // of struct nfp_topic_entry
};

// A topic while its records are read.
struct nfp_topic_reader {
	uint32_t topic_bytes; // of the whole topic, as far as the probe has read it
	uint32_t expected; // bytes of text that its records hold
	uint32_t bytes; // read so far
	uint8_t text[NFP_TOPIC_TEXT_BYTES];
};

void nfp_topics_init(struct nfp_topics *topics);
void nfp_topics_deinit(struct nfp_topics *topics);
// Remembers the text of a digest. What finds no memory is not remembered.
void nfp_topics_add(struct nfp_topics *topics, uint64_t digest, const struct nfp_topic_reader *reader);
// NULL: it was never seen, or long ago.
struct nfp_topic_entry *nfp_topics_find(struct nfp_topics *topics, uint64_t digest);
#endif
