// SPDX-License-Identifier: Apache-2.0
// The slow half of calltree.h: exits that do not match the innermost call, stacks that interleave.
#include "calltree.h"
#include <string.h>

_Static_assert(NFP_NONE + 1 == 0, "counting down from an index ends there");

static int doubtful(const struct nfp_open *open)
{
	return open->flags & NFP_OPEN_DOUBTFUL;
}

// A call that is given up goes with the next sweep.
static void mark_gone(struct nfp_calltree *tree, uint32_t index)
{
	struct nfp_open *open = &tree->items[index];
	tree->doubtful -= doubtful(open) != 0;
	open->flags = NFP_OPEN_GONE;
}

// Takes out the calls that are gone, none of which is before `first`: all of them in one pass.
static void sweep(struct nfp_calltree *tree, struct nfp_log *log, uint32_t first)
{
	uint32_t kept = first, enclosing = tree->enclosing;
	nfp_calltree_spend(tree, tree->count - first);
	for (uint32_t i = first; i < tree->count; i++) {
		if (!(tree->items[i].flags & NFP_OPEN_GONE)) {
			tree->items[kept++] = tree->items[i];
			continue;
		}
		nfp_log_kill(log, tree->items[i].row);
		tree->unpaired_entries++;
		enclosing -= i < tree->enclosing;
	}
	tree->count = kept;
	tree->enclosing = enclosing;
}

void nfp_calltree_give_up(struct nfp_calltree *tree, struct nfp_log *log, uint16_t role)
{
	nfp_calltree_spend(tree, tree->count);
	for (uint32_t i = 0; i < tree->count; i++)
		if (tree->items[i].role == role)
			mark_gone(tree, i);
	sweep(tree, log, 0);
}

static void give_up_outermost(struct nfp_calltree *tree, struct nfp_log *log, uint32_t gone)
{
	for (uint32_t i = 0; i < gone; i++) {
		nfp_log_kill(log, tree->items[i].row);
		tree->doubtful -= doubtful(&tree->items[i]) != 0;
	}
	tree->unpaired_entries += gone;
	tree->count -= gone;
	tree->enclosing = tree->enclosing > gone ? tree->enclosing - gone : 0;
	if (tree->count)
		memmove(tree->items, tree->items + gone, tree->count * sizeof(*tree->items));
}

// Each call that is given up had a record of its own, which pays once more.
void nfp_calltree_pay(struct nfp_calltree *tree, struct nfp_log *log)
{
	while (tree->credit < 0 && tree->count) {
		uint32_t gone = tree->count / 4 + 1; // a few at a time would move the others too often
		give_up_outermost(tree, log, gone);
		tree->credit += (int64_t)gone * NFP_STEPS_PER_RECORD;
	}
	if (tree->credit < 0)
		tree->credit = 0;
}

static void doubt(struct nfp_calltree *tree, uint32_t index)
{
	if (doubtful(&tree->items[index]))
		return;
	tree->items[index].flags |= NFP_OPEN_DOUBTFUL;
	tree->doubtful++;
}

// Marks the oldest doubtful calls that are too many. Returns the first of them, or `first`.
static uint32_t bound_doubtful(struct nfp_calltree *tree, uint32_t first)
{
	for (uint32_t i = 0; tree->doubtful > NFP_DOUBTFUL_MAX; i++) {
		nfp_calltree_spend(tree, 1);
		if (!doubtful(&tree->items[i]))
			continue;
		mark_gone(tree, i);
		first = i < first ? i : first;
	}
	return first;
}

// A call begins (entry: 1) or has ended (0) at `sp`: no frame can be left below it on the same stack.
void nfp_calltree_displace(struct nfp_calltree *tree, struct nfp_log *log, uint32_t sp, int entry)
{
	if (tree->credit < 0)
		nfp_calltree_pay(tree, log);
	uint32_t i = tree->count, gone = tree->count;
	while (i-- > 0) {
		int32_t distance = (int32_t)(tree->items[i].sp - sp);
		if (distance == 0 && entry) {
			mark_gone(tree, i);
			gone = i;
		} else if (distance < 0 && distance > -NFP_STACK_SPAN)
			doubt(tree, i);
		else if (distance > 0 && distance < NFP_STACK_SPAN && !tree->doubtful)
			break; // what is below it was checked when it began
	}
	nfp_calltree_spend(tree, tree->count - (i + 1));
	gone = bound_doubtful(tree, gone);
	if (gone < tree->count)
		sweep(tree, log, gone);
}

// The innermost open call on the same stack above sp, or NFP_NONE.
uint32_t nfp_calltree_parent(struct nfp_calltree *tree, uint32_t sp)
{
	uint32_t i = tree->count;
	while (i-- > 0)
		if (!doubtful(&tree->items[i]) && nfp_sp_encloses(tree->items[i].sp, sp))
			break;
	nfp_calltree_spend(tree, tree->count - (i + 1));
	return i; // NFP_NONE when there is none
}

uint32_t nfp_calltree_search(struct nfp_calltree *tree, uint32_t function, uint32_t sp)
{
	uint32_t i = tree->count;
	while (i-- > 0)
		if (tree->items[i].sp == sp && tree->items[i].function == function)
			break;
	nfp_calltree_spend(tree, tree->count - (i + 1));
	return i; // NFP_NONE when there is none
}

// Room for one more open call; 0 and one unpaired entry when there is no memory.
int nfp_calltree_make_room(struct nfp_calltree *tree, struct nfp_log *log)
{
	if (tree->count < NFP_OPEN_MAX) {
		if (NFP_ARRAY_RESERVE(tree, tree->count + 1))
			return 1;
		tree->unpaired_entries++;
		return 0;
	}
	give_up_outermost(tree, log, NFP_OPEN_MAX / 4);
	return 1;
}

// Takes the ended call `index` out from under others. What lies below it on its stack is doubtful; what
// outlasts it is handed to its parent by nfp_parent_climb.
void nfp_calltree_pull(struct nfp_calltree *tree, struct nfp_log *log, uint32_t index)
{
	uint32_t sp = tree->items[index].sp, behind = tree->count - index - 1;
	log->irregular = 1;
	tree->doubtful -= doubtful(&tree->items[index]) != 0;
	tree->enclosing -= index < tree->enclosing;
	nfp_calltree_spend(tree, behind);
	memmove(&tree->items[index], &tree->items[index + 1], behind * sizeof(*tree->items));
	tree->count--;
	nfp_calltree_displace(tree, log, sp, 0);
}

void nfp_calltree_clear(struct nfp_calltree *tree, struct nfp_log *log)
{
	give_up_outermost(tree, log, tree->count);
}

void nfp_calltree_deinit(struct nfp_calltree *tree)
{
	free(tree->items);
	*tree = (struct nfp_calltree){0};
}
