// SPDX-License-Identifier: Apache-2.0
// What the age of a batch counts from (native/probe/queue.h): the last poll that left its queue empty, or, where none is
// known or too many came back full since, the poll that returned it. Late capture judges by this age, the monitor's
// latencies count from the same time.
#include "check.h"
#include "queue.h"

enum { QUEUE = 77, OTHER = QUEUE ^ 1 << NFP_QUEUE_MARK_BITS, STEP = 1000, EMPTY = 5 * STEP, FULL = 300 };

int main(void)
{
	static struct nfp_thread thread;
	uint64_t now = STEP;
	for (int i = 0; i < 3; i++, now += STEP) { // never seen empty, whatever ran before
		CHECK(nfp_queue_batch(&thread, QUEUE, now) == NFP_QUEUE_SATURATED);
		CHECK(thread.batch_start == now && thread.batch_earliest == now);
	}
	CHECK(now < EMPTY);
	nfp_queue_emptied(&thread, QUEUE, EMPTY);
	now = EMPTY + STEP;
	for (int i = 0; i < FULL; i++, now += STEP) {
		int is_saturated = i >= NFP_SATURATED_POLLS;
		CHECK(nfp_queue_batch(&thread, QUEUE, now) == (is_saturated ? NFP_QUEUE_SATURATED : 0));
		CHECK(thread.batch_start == now);
		CHECK(thread.batch_earliest == (is_saturated ? now : (uint64_t)EMPTY));
		nfp_queue_batch(&thread, OTHER,
		                now + 1); // another queue of the thread says nothing of this one
		CHECK(thread.batch_earliest == now + 1);
	}
	nfp_queue_emptied(&thread, QUEUE, now);
	CHECK(nfp_queue_batch(&thread, QUEUE, now + STEP) == 0 && thread.batch_earliest == now);
	printf("queue: ages count from the last empty poll, or from the poll itself\n");
	return 0;
}
