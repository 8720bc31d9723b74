// SPDX-License-Identifier: Apache-2.0
// Random columns, from pure noise to nearly legal ones, through the OTLP encoder: never a byte outside of the arrays
// and the request, and what comes out is a well-formed ExportTraceServiceRequest of as many spans as it says. Run
// under AddressSanitizer and UBSan; tests/unit/export/test_span_random.py reads such bytes with protobuf itself.
#include "check.h"
#include "otlp.h"
#include <string.h>

enum {
	CALLS = 40,
	BATCHES = 8,
	PACKETS = 30,
	TOPICS = 3,
	HANDOVERS = 200,
	SELECTED = 50,
	PARTS = 60,
	FUNCTIONS = 4,
	THREADS = 3
};

static void fill(unsigned long *state, void *bytes, size_t size)
{
	uint8_t *p = bytes;
	for (size_t i = 0; i < size; i++)
		p[i] = (uint8_t)(next_random(state) >> 20);
}

// Exactly as many bytes as the array has, so that the sanitizer sees every step outside.
static void *noise(unsigned long *state, size_t count, size_t size)
{
	void *bytes = malloc(count * size);
	CHECK(bytes);
	fill(state, bytes, count * size);
	return bytes;
}

static uint32_t likely_index(unsigned long *state, uint32_t count)
{
	unsigned long random = next_random(state);
	return random % 8 ? (uint32_t)(random >> 8) % count : (uint32_t)(random >> 8);
}

static void make_likely(unsigned long *state, struct nfp_call *calls, struct nfp_batch *batches,
                        struct nfp_packet *packets)
{
	for (int i = 0; i < CALLS; i++) {
		calls[i].function = likely_index(state, FUNCTIONS + 1);
		calls[i].thread = likely_index(state, THREADS + 1);
		calls[i].parent = likely_index(state, CALLS);
	}
	for (int i = 0; i < BATCHES; i++) {
		batches[i].first_call = likely_index(state, CALLS);
		batches[i].calls = likely_index(state, CALLS);
		batches[i].thread = likely_index(state, THREADS + 1);
	}
	for (int i = 0; i < PACKETS; i++) {
		static const uint8_t versions[] = {0, 4, 6, NFP_NONE & 255, 4, 6, 1, 2};
		packets[i].batch = likely_index(state, BATCHES);
		packets[i].ip_version = versions[next_random(state) % 8];
	}
}

static const uint8_t *read_varint(const uint8_t *p, const uint8_t *end, uint64_t *value)
{
	*value = 0;
	for (int shift = 0; shift < 70; shift += 7) {
		CHECK(p < end);
		*value |= shift < 64 ? (uint64_t)(*p & 127) << shift : 0;
		if (!(*p++ & 128))
			return p;
	}
	CHECK(!"a varint has at most ten bytes");
	return NULL;
}

// Messages inside messages: a path of field numbers leads to those that are read, too.
static uint32_t walk(const uint8_t *p, const uint8_t *end, const uint32_t *path, uint32_t depth)
{
	uint32_t spans = 0;
	while (p < end) {
		uint64_t tag, length;
		p = read_varint(p, end, &tag);
		CHECK(tag >> 3 > 0 && tag >> 3 < 17);
		if ((tag & 7) == 0) {
			p = read_varint(p, end, &length);
			continue;
		}
		CHECK((tag & 7) == 1 || (tag & 7) == 2 || (tag & 7) == 5);
		length = (tag & 7) == 1 ? 8 : 4;
		if ((tag & 7) == 2)
			p = read_varint(p, end, &length);
		CHECK(length <= (uint64_t)(end - p));
		if (depth && (tag & 7) == 2 && tag >> 3 == path[0])
			spans += walk(p, p + length, path + 1, depth - 1) + (depth == 2);
		p += length;
	}
	return spans;
}

static struct nfp_otlp_text add_text(unsigned long *state, uint8_t *text, uint32_t *used)
{
	// Span.name, of a random length.
	uint32_t size = (uint32_t)next_random(state) % 100;
	struct nfp_otlp_text added = {*used, size + 2};
	text[(*used)++] = 0x2a;
	text[(*used)++] = (uint8_t)size;
	memset(text + *used, 'n', size);
	*used += size;
	return added;
}

// Everything that one seed makes.
struct noise {
	struct nfp_call *calls;
	struct nfp_batch *batches;
	struct nfp_packet *packets;
	struct nfp_topic *topics;
	struct nfp_tail *tails;
	struct nfp_tail_part *parts;
	struct nfp_anchor *anchors;
	uint32_t *selected;
	uint8_t *reasons;
	struct nfp_otlp_function functions[FUNCTIONS];
	struct nfp_otlp_text threads[THREADS];
	uint8_t text[6000];
	uint32_t text_used;
};

static void noise_init(struct noise *made, unsigned long *state, unsigned long seed)
{
	made->calls = noise(state, CALLS, sizeof(*made->calls));
	made->batches = noise(state, BATCHES, sizeof(*made->batches));
	made->packets = noise(state, PACKETS, sizeof(*made->packets));
	made->topics = noise(state, TOPICS, sizeof(*made->topics));
	made->tails = noise(state, SELECTED, sizeof(*made->tails));
	made->parts = noise(state, PARTS, sizeof(*made->parts));
	made->anchors = noise(state, 2, sizeof(*made->anchors));
	made->selected = noise(state, SELECTED, sizeof(*made->selected));
	made->reasons = noise(state, SELECTED, 1);
	made->text_used = 0;
	if (seed % 3)
		make_likely(state, made->calls, made->batches, made->packets);
	for (int i = 0; i < PACKETS && seed % 2; i++)
		made->packets[i].digest %= 22;
	for (int i = 0; i < SELECTED; i++) {
		made->selected[i] = likely_index(state, PACKETS);
		made->tails[i].kind %= 8;
		made->tails[i].part_count %= NFP_TAIL_PARTS_MAX + 3;
		made->tails[i].first_part %= PARTS + 10;
	}
	for (int i = 0; i < PARTS; i++) {
		made->parts[i].kind = made->parts[i].kind % 8 + (seed % 7 > 0);
		made->parts[i].function %= FUNCTIONS + 2;
	}
	for (int i = 0; i < TOPICS; i++) {
		made->topics[i].digest = (uint64_t)i * 7;
		made->topics[i].size %= NFP_TOPIC_TEXT_BYTES + 1;
	}
	// They are the monitor's own, and so are tables and text; all the rest may be what a target wrote.
	for (int i = 0; i < 2; i++)
		made->anchors[i].ns_per_tick_q32 &= (1ul << 40) - 1;
	made->anchors[1].ticks = made->anchors[0].ticks | 1ul << 63;
}

static void noise_deinit(struct noise *made)
{
	void *all[] = {made->calls, made->batches, made->packets,  made->topics, made->tails,
	               made->parts, made->anchors, made->selected, made->reasons};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		free(all[i]);
}

static struct nfp_otlp_job make_job(struct noise *made, unsigned long *state, unsigned long seed)
{
	for (int i = 0; i < FUNCTIONS; i++)
		made->functions[i] =
		    (struct nfp_otlp_function){.head = add_text(state, made->text, &made->text_used),
		                               .attribute = add_text(state, made->text, &made->text_used),
		                               .late_head = add_text(state, made->text, &made->text_used),
		                               .tail = add_text(state, made->text, &made->text_used),
		                               .name = add_text(state, made->text, &made->text_used)};
	for (int i = 0; i < THREADS; i++)
		made->threads[i] = add_text(state, made->text, &made->text_used);
	struct nfp_otlp_job job = {.calls = made->calls,
	                           .batches = made->batches,
	                           .packets = made->packets,
	                           .topics = made->topics,
	                           .selected = made->selected,
	                           .reasons = made->reasons,
	                           .tails = seed % 5 ? made->tails : NULL,
	                           .parts = made->parts,
	                           .tail_part_count = PARTS,
	                           .anchors = made->anchors,
	                           .text = made->text,
	                           .functions = made->functions,
	                           .threads = made->threads,
	                           .call_count = CALLS,
	                           .batch_count = BATCHES,
	                           .packet_count = PACKETS,
	                           .topic_count = TOPICS,
	                           .selected_count = SELECTED,
	                           .anchor_count = 2,
	                           .function_count = FUNCTIONS,
	                           .thread_count = THREADS,
	                           .resource = add_text(state, made->text, &made->text_used),
	                           .scope = add_text(state, made->text, &made->text_used),
	                           .scope_end = add_text(state, made->text, &made->text_used),
	                           .resource_end = add_text(state, made->text, &made->text_used),
	                           .session_id = next_random(state),
	                           .correlate_window_ns = seed % 4 ? 0 : 1000000000,
	                           .time_scale = seed % 3 ? 0 : 1000,
	                           .is_linked = seed % 7 < 2,
	                           .opens = seed % 7 ? made->reasons : NULL};
	CHECK(made->text_used <= sizeof(made->text));
	return job;
}

static uint64_t encode_all(const struct nfp_otlp_job *job, size_t capacity)
{
	static const uint32_t path[] = {1, 2, 2, 9}; // request, resource, scope, span, attribute
	uint8_t *out = malloc(capacity);
	CHECK(out);
	uint64_t spans = 0;
	for (uint32_t first = 0; first < job->selected_count;) {
		struct nfp_otlp_result result;
		nfp_otlp_encode(job, first, out, capacity, &result);
		CHECK(result.packets >= 1 && result.bad_packets <= result.packets);
		CHECK(result.spans <= NFP_OTLP_SPANS_MAX);
		CHECK(result.offset <= capacity && result.bytes <= capacity - result.offset);
		const uint8_t *request = out + result.offset;
		CHECK(walk(request, request + result.bytes, path, 4) == result.spans);
		first += result.packets;
		spans += result.spans;
	}
	free(out);
	return spans;
}

static uint64_t fuzz(unsigned long seed)
{
	unsigned long state = seed * 0x9e3779b97f4a7c15u + 1;
	struct noise made;
	noise_init(&made, &state, seed);
	struct nfp_otlp_job job = make_job(&made, &state, seed);
	struct nfp_handover handovers[HANDOVERS];
	uint8_t opens[HANDOVERS];
	for (uint32_t i = 0; i < HANDOVERS; i++) {
		handovers[i] =
		    (struct nfp_handover){i / 3, next_random(&state) % (job.batch_count + 2), i, 0};
		opens[i] = next_random(&state) & 1;
	}
	job.handovers = handovers;
	job.handover_opens = seed % 5 ? opens : NULL;
	job.handover_count = seed % 3 ? HANDOVERS : 0;
	uint64_t spans = encode_all(&job, nfp_otlp_prepare(&job) + next_random(&state) % 20000);
	uint64_t ids[2 * SELECTED], links[3 * SELECTED];
	uint32_t numbers[SELECTED];
	for (uint32_t i = 0; i < SELECTED; i++)
		numbers[i] = next_random(&state) % 4;
	nfp_otlp_trace_ids(&job, made.selected, SELECTED, ids);
	nfp_otlp_batch_links(&job, made.selected, numbers, SELECTED, links);
	nfp_otlp_packet_links(&job, made.selected, SELECTED, links);
	nfp_otlp_scale_links(&job, SELECTED, links);
	noise_deinit(&made);
	return spans;
}

int main(int count, char **arguments)
{
	unsigned long seeds = searches(count, arguments, 3000);
	uint64_t spans = 0;
	for (unsigned long seed = 1; seed <= seeds; seed++)
		spans += fuzz(seed);
	CHECK(spans > 100000);
	printf("otlp fuzz: %lu spans came out\n", (unsigned long)spans);
	return 0;
}
