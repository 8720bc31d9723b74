// SPDX-License-Identifier: Apache-2.0
// Packet records: reads a packet's headers and writes what identifies it. See describe.h.
#include "describe.h"
#include "abi/digest.h"

static uint64_t load_be64(const uint8_t *bytes)
{
	return __builtin_bswap64(nfp_load_64(bytes));
}

// One packet as a run of adjacent records: all of them, or none.
struct packet_writer {
	struct nfp_record *slot;
	uint32_t function;
};

static void put(struct packet_writer *writer, uint32_t kind, uint64_t word, uint32_t sp)
{
	writer->slot = nfp_put(writer->slot, word, writer->function | kind << NFP_KIND_SHIFT, sp);
}

static void put_addresses(struct packet_writer *writer, const struct nfp_packet_facts *facts)
{
	uint32_t ports = facts->source_port | (uint32_t)facts->destination_port << 16;
	if (facts->ip_version == 4) {
		uint64_t source = nfp_load_be32(facts->source),
		         destination = nfp_load_be32(facts->destination);
		put(writer, NFP_PACKET_V4, source | destination << 32, ports);
	} else if (facts->ip_version == 6) {
		put(writer, NFP_PACKET_SRC6_HIGH, load_be64(facts->source), ports);
		put(writer, NFP_PACKET_SRC6_LOW, load_be64(facts->source + 8), 0);
		put(writer, NFP_PACKET_DST6_HIGH, load_be64(facts->destination), 0);
		put(writer, NFP_PACKET_DST6_LOW, load_be64(facts->destination + 8), 0);
	}
}

#define ETHERNET_PADDING_MAX 26 // of 46 bytes behind the Ethernet header at least 20 are IP's

#define UNIX_NS_MIN 1000000000000000000ull // in 2001
#define UNIX_NS_MAX 4000000000000000000ull // in 2096
#define NO_STAMP UINT32_MAX

// The unit of a stamp. A driver's may be in any clock of its device: what is neither is none.
static uint32_t judge_stamp(const struct nfp_program *program, const struct nfp_view *view)
{
	if (!view->stamped || program->arrival_unit != NFP_ARRIVAL_EITHER)
		return view->stamped ? program->arrival_unit : NO_STAMP;
	if (nfp_ticks() - view->arrival < NFP_STAMP_AGE_MAX_TICKS)
		return NFP_ARRIVAL_TICKS;
	return view->arrival >= UNIX_NS_MIN && view->arrival <= UNIX_NS_MAX ? NFP_ARRIVAL_UNIX_NS : NO_STAMP;
}

// Whether a packet begins with its IP header: the length that stands there is the packet's, padding left out.
static int begins_with_ip(const struct nfp_view *view)
{
	if (view->readable < 20)
		return 0;
	uint32_t version = view->data[0] >> 4;
	uint32_t length = version == 4 ? nfp_load_be16(view->data + 2) : nfp_load_be16(view->data + 4) + 40u;
	return (version == 6 || (version == 4 && (view->data[0] & 15) >= 5)) && length <= view->length &&
	       view->length - length <= ETHERNET_PADDING_MAX;
}

static uint32_t link_of(const struct nfp_program *program, const struct nfp_view *view)
{
	uint32_t inner = program->link_layer & NFP_LINK_INNER;
	if ((program->link_layer ^ inner) != NFP_LINK_EITHER)
		return program->link_layer;
	return inner | (begins_with_ip(view) ? NFP_LINK_IP : NFP_LINK_ETHERNET);
}

enum {
	AHEAD = 4, // packets whose headers are fetched before they are read
	FETCHED_BYTES = 86, // of one: what the id of a packet of TCP covers
};

// Has a packet's headers on their way while those before it are described: an interface card wrote them, not the processor.
static void fetch_headers(const struct nfp_program *program, uint64_t buffer)
{
	const uint8_t *bytes = (const uint8_t *)(uintptr_t)buffer, *data;
	uint16_t offset = 0;
	if (program->number_shift)
		return;
	__builtin_memcpy(&data, bytes + program->data_pointer, sizeof(data));
	if (program->data_offset != NFP_NO_OFFSET)
		__builtin_memcpy(&offset, bytes + program->data_offset, sizeof(offset));
	__builtin_prefetch(data + offset);
	__builtin_prefetch(data + offset + FETCHED_BYTES - 1);
}

void nfp_describe_burst(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                        const uint64_t *buffers, uint32_t count)
{
	for (uint32_t i = 0; i < nfp_smaller(count, AHEAD); i++)
		fetch_headers(program, buffers[i]);
	for (uint32_t i = 0; i < count; i++) {
		struct nfp_view view;
		if (i + AHEAD < count)
			fetch_headers(program, buffers[i + AHEAD]);
		nfp_view_read(program, buffers[i], &view);
		nfp_describe(thread, function, program, &view, i, NULL);
	}
}

void nfp_describe(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                  const struct nfp_view *view, uint32_t index, const struct nfp_origin *origin)
{
	struct nfp_packet_facts facts;
	nfp_packet_describe(view->data, view->readable, view->length, link_of(program, view),
	                    nfp_library.header->digest_key, &facts);
	// Of one that is handed on, and was described when it was received, nobody needs the addresses once more.
	int is_first = origin || program->role == NFP_ROLE_RECEIVE;
	uint64_t next = is_first ? 0 : view->next;
	uint32_t unit = is_first ? judge_stamp(program, view) : NO_STAMP;
	uint32_t addresses = is_first ? (facts.ip_version == 4) + 4 * (facts.ip_version == 6) : 0;
	uint32_t slots = 2 + addresses + (unit != NO_STAMP) + (origin != 0) + (view->numbers != 0) +
	                 (next != 0) + (nfp_origin_is_taken(origin, thread) ? 1 + origin->via_count : 0);
	struct packet_writer writer = {nfp_reserve(thread, slots, NFP_LOST_PACKET), function};
	if (!writer.slot)
		return;
	put(&writer, NFP_PACKET, view->buffer, nfp_smaller(view->length, 0xffff) | index << 16);
	if (origin)
		put(&writer, NFP_PACKET_ORIGIN, origin->start_ticks, origin->index);
	for (uint32_t i = 0; nfp_origin_is_taken(origin, thread) && i < origin->via_count; i++)
		put(&writer, NFP_PACKET_VIA, origin->via[i].ticks << 16 | origin->via[i].thread, 0);
	if (nfp_origin_is_taken(origin, thread))
		put(&writer, NFP_PACKET_TAKEN, origin->taken_ticks << 16 | origin->thread,
		    origin->taken_index);
	put(&writer, NFP_PACKET_ID, facts.digest,
	    facts.ip_id | (uint32_t)facts.protocol << 16 | (uint32_t)facts.ip_version << 24 |
	        (uint32_t)facts.flags << NFP_PACKET_MARKS_SHIFT);
	if (addresses)
		put_addresses(&writer, &facts);
	if (unit != NO_STAMP)
		put(&writer, NFP_PACKET_ARRIVAL, view->arrival, unit);
	if (view->numbers)
		put(&writer, NFP_PACKET_NUMBERS, view->numbers, 0);
	if (next)
		put(&writer, NFP_PACKET_NEXT, next, 0);
}
