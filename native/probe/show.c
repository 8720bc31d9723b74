// SPDX-License-Identifier: Apache-2.0
// Packets of receive calls that only say how many they have received (VPP's input nodes, whose frame is NULL). The
// functions that get packets first show which ones they are, in the order of their receipt:
//
//   receive   N packets: N positions without pointers
//   show      the next positions get pointers, until all that the thread has received are shown
//   receive   after work: what was not shown went another way, and its positions stay empty
//
// Several receive calls before any work (a turn) share what follows. A packet that is shown twice in a turn is known by
// then. Runs on the target's threads; called by capture.c.
#include "late.h"

void nfp_show_expect(struct nfp_late *late)
{
	if (!late->worked)
		return;
	late->worked = 0;
	late->turn = late->shown = late->received;
}

static int is_shown(const struct nfp_late *late, uint64_t pointer, uint64_t before)
{
	uint64_t kept = nfp_late_oldest_kept(late);
	uint64_t oldest = kept > late->turn ? kept : late->turn;
	return nfp_late_find_below(late, pointer, before, oldest) != NFP_LATE_NOWHERE;
}

static void describe(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                     uint64_t buffer, uint64_t position)
{
	struct nfp_late *late = nfp_late_of(thread);
	const struct nfp_late_batch *batch = nfp_late_find_batch(late, position);
	struct nfp_origin origin = {batch->start_ticks, (uint32_t)(position - batch->first)};
	struct nfp_view view;
	nfp_view_read(program, buffer, &view);
	nfp_describe(thread, function, program, &view, origin.index, &origin);
}

void nfp_show(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
              struct nfp_burst burst)
{
	struct nfp_late *late = nfp_late_of(thread);
	const uint64_t *buffers = (const uint64_t *)(uintptr_t)burst.pointers;
	uint64_t before = late->shown;
	// Positions whose pointers, or whose batches, are not kept any more cannot be shown.
	uint64_t batched = late->batches > NFP_LATE_BATCHES
	                       ? nfp_late_batch_at(late, late->batches - NFP_LATE_BATCHES)->first
	                       : 0;
	if (late->received - late->shown > NFP_LATE_POINTERS || late->shown < batched)
		return;
	for (uint32_t i = 0; i < burst.count && late->shown < late->received; i++) {
		if (is_shown(late, buffers[i], before))
			continue;
		uint64_t position = late->shown++;
		late->pointers[position % NFP_LATE_POINTERS] = buffers[i];
		if (thread->gate & NFP_GATE_PACKETS)
			describe(thread, function, program, buffers[i], position);
	}
}
