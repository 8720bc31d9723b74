// SPDX-License-Identifier: Apache-2.0
// See worst.h: what healthy network functions write.
#include "worst.h"

// A forwarder: an engine call around receive, work and transmit; each packet described twice, or none.
static void forward(struct content *content, int works, int packets)
{
	uint64_t buffer = 0x10000;
	while (content->count < content->room) {
		put_now(content, NFP_ENTRY, NFP_ROLE_CALL, 9000);
		put_poll(content, NFP_ROLE_RECEIVE, content->ticks + 5, 32);
		for (int i = 0; packets && i < 32; i++) {
			put(content, NFP_PACKET, NFP_ROLE_RECEIVE, buffer + (uint64_t)i * 2304,
			    64 | (uint32_t)i << 16);
			put(content, NFP_PACKET_ID, 0, buffer * 77 + (uint64_t)i, 17 << 16 | 4 << 24);
			put(content, NFP_PACKET_V4, 0, 0x0a0000020a000001, 1000 | 2000 << 16);
		}
		for (int i = 0; i < works; i++) {
			put_now(content, NFP_ENTRY, NFP_ROLE_CALL, 8000);
			put_now(content, NFP_EXIT, NFP_ROLE_CALL, 8000);
		}
		put_now(content, NFP_ENTRY, NFP_ROLE_TRANSMIT, 8000);
		for (int i = 0; packets && i < 32; i++) {
			put(content, NFP_PACKET, NFP_ROLE_TRANSMIT, buffer + (uint64_t)i * 2304,
			    64 | (uint32_t)i << 16);
			put(content, NFP_PACKET_ID, 0, buffer * 77 + (uint64_t)i, 17 << 16 | 4 << 24);
		}
		put(content, NFP_VALUE, NFP_ROLE_TRANSMIT, 32 | 32ull << 32, 8000);
		put_now(content, NFP_EXIT, NFP_ROLE_TRANSMIT, 8000);
		put_now(content, NFP_EXIT, NFP_ROLE_CALL, 9000);
		buffer = 0x10000 + (buffer - 0x10000 + 32 * 2304) % (512 * 32 * 2304);
	}
}

static void good_calls(struct content *content)
{
	forward(content, 32, 0);
}

static void good_packets(struct content *content)
{
	forward(content, 8, 1);
}

// One thread receives and another one hands on, a few batches later; the monitor was paused meanwhile.
static void good_threads(struct content *content)
{
	content->threads = 2;
	for (uint64_t i = 0; content->count < content->room / 2; i++) {
		content->ticks = 1000 + i * 1000;
		put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 32);
		for (uint32_t j = 0; j < 32; j++)
			put(content, NFP_PACKET, NFP_ROLE_RECEIVE, 0x10000 + (i * 32 + j) * 2304,
			    64 | j << 16);
	}
	content->count = content->room / 2;
	for (uint64_t i = 0; content->count < content->room; i++) {
		content->ticks = 5000 + i * 1000;
		put_now(content, NFP_ENTRY, NFP_ROLE_TRANSMIT, 8000);
		for (uint32_t j = 0; j < 32; j++)
			put(content, NFP_PACKET, NFP_ROLE_TRANSMIT, 0x10000 + (i * 32 + j) * 2304,
			    64 | j << 16);
		put(content, NFP_VALUE, NFP_ROLE_TRANSMIT, 32 | 32ull << 32, 8000);
		put_now(content, NFP_EXIT, NFP_ROLE_TRANSMIT, 8000);
	}
}

#define NAMED(name) {#name, name}
const struct named_content nfp_good[] = {NAMED(good_calls), NAMED(good_packets), NAMED(good_threads), {0}};
