// SPDX-License-Identifier: Apache-2.0
// The slow half of calltree.h: exits that do not match the innermost call, stacks that interleave.
#include "calltree.h"
#include <string.h>

static int doubtful(const struct nfp_open *open)
{
	return open->flags & NFP_OPEN_DOUBTFUL;
}

static void forget(struct nfp_calltree *tree, uint32_t index)
{
	tree->doubtful -= doubtful(&tree->items[index]) != 0;
	if (index < tree->enclosing)
		tree->enclosing--;
	memmove(&tree->items[index], &tree->items[index + 1],
	        (tree->count - index - 1) * sizeof(*tree->items));
	tree->count--;
}

void nfp_calltree_give_up(struct nfp_calltree *tree, struct nfp_log *log, uint32_t index)
{
	nfp_log_kill(log, tree->items[index].row);
	tree->unpaired_entries++;
	forget(tree, index);
}

static void doubt(struct nfp_calltree *tree, uint32_t index)
{
	if (doubtful(&tree->items[index]))
		return;
	tree->items[index].flags |= NFP_OPEN_DOUBTFUL;
	tree->doubtful++;
}

static void bound_doubtful(struct nfp_calltree *tree, struct nfp_log *log)
{
	for (uint32_t i = 0; tree->doubtful > NFP_DOUBTFUL_MAX && i < tree->count;)
		if (doubtful(&tree->items[i]))
			nfp_calltree_give_up(tree, log, i);
		else
			i++;
}

// A call begins (entry: 1) or has ended (0) at `rsp`: no frame can be left below it on the same stack.
void nfp_calltree_displace(struct nfp_calltree *tree, struct nfp_log *log, uint32_t rsp, int entry)
{
	for (uint32_t i = tree->count; i-- > 0;) {
		int32_t distance = (int32_t)(tree->items[i].rsp - rsp);
		if (distance == 0 && entry)
			nfp_calltree_give_up(tree, log, i);
		else if (distance < 0 && distance > -NFP_STACK_SPAN)
			doubt(tree, i);
		else if (distance > 0 && distance < NFP_STACK_SPAN && !tree->doubtful)
			break; // what is below it was checked when it began
	}
	bound_doubtful(tree, log);
}

// The innermost open call on the same stack above rsp, or NFP_NONE.
uint32_t nfp_calltree_parent(const struct nfp_calltree *tree, uint32_t rsp)
{
	for (uint32_t i = tree->count; i-- > 0;)
		if (!doubtful(&tree->items[i]) && nfp_rsp_encloses(tree->items[i].rsp, rsp))
			return i;
	return NFP_NONE;
}

uint32_t nfp_calltree_search(const struct nfp_calltree *tree, uint32_t function, uint32_t rsp)
{
	for (uint32_t i = tree->count; i-- > 0;)
		if (tree->items[i].rsp == rsp && tree->items[i].function == function)
			return i;
	return NFP_NONE;
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
	uint32_t gone = NFP_OPEN_MAX / 4;
	for (uint32_t i = 0; i < gone; i++) {
		nfp_log_kill(log, tree->items[i].row);
		tree->doubtful -= doubtful(&tree->items[i]) != 0;
	}
	tree->unpaired_entries += gone;
	tree->count -= gone;
	tree->enclosing = tree->enclosing > gone ? tree->enclosing - gone : 0;
	memmove(tree->items, tree->items + gone, tree->count * sizeof(*tree->items));
	return 1;
}

// Takes the ended call `index` out from under others. What lies below it on its stack is doubtful; what
// outlasts it is handed to its parent by nfp_parent_climb.
void nfp_calltree_pull(struct nfp_calltree *tree, struct nfp_log *log, uint32_t index)
{
	uint32_t rsp = tree->items[index].rsp;
	log->irregular = 1;
	forget(tree, index);
	nfp_calltree_displace(tree, log, rsp, 0);
}

void nfp_calltree_clear(struct nfp_calltree *tree, struct nfp_log *log)
{
	while (tree->count)
		nfp_calltree_give_up(tree, log, tree->count - 1);
}

void nfp_calltree_deinit(struct nfp_calltree *tree)
{
	free(tree->items);
	*tree = (struct nfp_calltree){0};
}
