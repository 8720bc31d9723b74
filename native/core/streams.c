// SPDX-License-Identifier: Apache-2.0
// See pipeline.h and stream.h. A pipeline and the streams of its threads: made, told about functions, given back.
#include "pipeline.h"
#include "stream.h"
#include <string.h>

struct nfp_pipeline *nfp_pipeline_create(const uint8_t *roles, uint32_t functions)
{
	struct nfp_pipeline *pipeline = calloc(1, sizeof(*pipeline));
	if (!pipeline)
		return NULL;
	pipeline->next_batch_id = 1;
	nfp_hash_init(&pipeline->buffers.hash);
	nfp_hash_init(&pipeline->topics.hash);
	if (nfp_pipeline_roles(pipeline, roles, functions) == 0)
		return pipeline;
	free(pipeline);
	return NULL;
}

static void stream_destroy(struct nfp_stream *stream)
{
	nfp_calltree_deinit(&stream->tree);
	free(stream->outside.items);
	free(stream->handed.items);
	free(stream->chosen.items);
	free(stream->recent.items);
	free(stream->takes.items);
	free(stream->events.items);
	free(stream);
}

void nfp_pipeline_destroy(struct nfp_pipeline *pipeline)
{
	if (!pipeline)
		return;
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++)
		if (pipeline->streams[i])
			stream_destroy(pipeline->streams[i]);
	for (uint32_t i = 0; i < pipeline->slots.count; i++) {
		free(pipeline->slots.items[i]->log.items);
		free(pipeline->slots.items[i]->packets.items);
		free(pipeline->slots.items[i]->handovers.items);
		free(pipeline->slots.items[i]);
	}
	free(pipeline->slots.items);
	free(pipeline->roles.items);
	free(pipeline->costs.items);
	free(pipeline->buffers.items);
	free(pipeline->unmatched.items);
	free(pipeline->still_unmatched.items);
	free(pipeline->calls.items);
	free(pipeline->batches.items);
	free(pipeline->packets.items);
	free(pipeline->given_topics.items);
	free(pipeline->handovers.items);
	free(pipeline->reemitted_batches.items);
	free(pipeline->reemitted_calls.items);
	nfp_topics_deinit(&pipeline->topics);
	free(pipeline->remap.items);
	nfp_counted_deinit(&pipeline->counted);
	free(pipeline->travellers.items);
	free(pipeline->moved.items);
	free(pipeline);
}

int nfp_pipeline_roles(struct nfp_pipeline *pipeline, const uint8_t *roles, uint32_t functions)
{
	if (functions > NFP_FUNCTION_MASK + 1 || !NFP_ARRAY_RESERVE(&pipeline->roles, functions + 1))
		return -1;
	if (functions > pipeline->roles.count)
		pipeline->roles.count = functions;
	for (uint32_t i = 0; i < functions; i++) {
		int pooled = roles[i] == NFP_ROLE_RECEIVE_POOLED;
		pipeline->pooled |= pooled;
		pipeline->sees_handovers |= roles[i] == NFP_ROLE_HAND_OVER;
		pipeline->roles.items[i] = pooled                      ? NFP_ROLE_RECEIVE
		                           : roles[i] <= NFP_ROLE_LAST ? roles[i]
		                                                       : NFP_ROLE_CALL;
	}
	return 0;
}

int nfp_pipeline_costs(struct nfp_pipeline *pipeline, const struct nfp_cost *costs, uint32_t functions)
{
	if (functions > NFP_FUNCTION_MASK + 1 || !NFP_ARRAY_RESERVE(&pipeline->costs, functions + 1))
		return -1;
	memcpy(pipeline->costs.items, costs, functions * sizeof(*costs));
	pipeline->costs.count = functions;
	return 0;
}

int nfp_pipeline_counter_costs(struct nfp_pipeline *pipeline, const struct nfp_counter_cost *costs,
                               uint32_t functions)
{
	if (functions > NFP_FUNCTION_MASK + 1 || !NFP_ARRAY_RESERVE(&pipeline->counted.costs, functions + 1))
		return -1;
	memcpy(pipeline->counted.costs.items, costs, functions * sizeof(*costs));
	pipeline->counted.costs.count = functions;
	return 0;
}

void nfp_pipeline_count_anew(struct nfp_pipeline *pipeline, uint32_t set)
{
	pipeline->counted.set = set;
	pipeline->counted.costs.count = 0;
}

struct nfp_stream *nfp_stream_of(struct nfp_pipeline *pipeline, uint32_t thread)
{
	if (thread >= NFP_THREAD_COUNT)
		return NULL;
	struct nfp_stream *stream = pipeline->streams[thread];
	if (stream)
		return stream;
	stream = calloc(1, sizeof(*stream));
	if (!stream)
		return NULL;
	stream->thread = thread;
	stream->tree.costs = &pipeline->costs;
	stream->log = &stream->outside;
	stream->outside_limit = NFP_OUTSIDE_CALLS;
	stream->tree.credit = NFP_STEPS_SAVED;
	stream->ended_last = &stream->ended;
	stream->last_ticks = 1; // 0 means open in a row
	pipeline->streams[thread] = stream;
	pipeline->stream_count++;
	pipeline->newest_round = pipeline->round;
	return stream;
}
