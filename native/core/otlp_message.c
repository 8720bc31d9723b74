// SPDX-License-Identifier: Apache-2.0
// Writes what the span of a broker's message has instead of a flow: topic, message id, length (OpenTelemetry's names
// for messaging).
#include "abi/record.h"
#include "otlp_span.h"
#include "otlp_wire.h"

static const struct nfp_key TOPIC = NFP_KEY("messaging.destination.name");
static const struct nfp_key MESSAGE_ID = NFP_KEY("messaging.message.id");
static const struct nfp_key BODY_BYTES = NFP_KEY("messaging.message.body.size");

// No length in an attribute needs a second byte: what surrounds key and text are 6 bytes.
_Static_assert(26 + NFP_TOPIC_TEXT_BYTES + 6 < 128, "nfp_wire_key writes lengths of one byte");

static uint64_t digest_at(const void *rows, uint32_t place)
{
	return ((const struct nfp_topic *)rows)[place].digest;
}

// A string by OpenTelemetry's conventions.
static uint8_t *write_id(uint8_t *p, uint32_t number)
{
	char digits[5], text[5];
	uint32_t count = 0;
	do
		digits[count++] = (char)('0' + number % 10);
	while ((number /= 10) && count < sizeof(digits));
	for (uint32_t i = 0; i < count; i++)
		text[i] = digits[count - 1 - i];
	return nfp_wire_string(p, &MESSAGE_ID, text, count);
}

uint8_t *nfp_span_write_message(uint8_t *p, const struct nfp_trace *trace)
{
	const struct nfp_packet *packet = trace->packet;
	if (packet->ip_version != NFP_VERSION_MESSAGE)
		return p;
	struct nfp_message message;
	memcpy(&message, packet->source, sizeof(message));
	const struct nfp_otlp_job *job = trace->job;
	uint32_t place = nfp_span_find(job->topics, job->topic_count, packet->digest, digest_at);
	if (place != NFP_NONE && job->topics[place].size <= NFP_TOPIC_TEXT_BYTES)
		p = nfp_wire_string(p, &TOPIC, (const char *)job->topics[place].text,
		                    job->topics[place].size);
	if (packet->ip_id)
		p = write_id(p, packet->ip_id);
	return nfp_wire_int(p, &BODY_BYTES, message.body_bytes);
}
