// SPDX-License-Identifier: Apache-2.0
// The call tree of one thread: pairs entries with exits by function and sp, and keeps one row per call in
// a log, in the order of the entries, so that parents stand before their children. Pure: no I/O,
// no clock; any sequence of entries and exits is legal.
//
// Stacks grow down. An open call that lies at or below a call that begins, or below one that ends, on the
// same stack was left without its exit (longjmp, exception, lost record), or it belongs to a coroutine
// whose stack lies near. Which of the two it is shows later: a call that cannot be told is *doubtful*; its
// own exit makes it a call again, an entry at its very sp proves that its frame is gone.
//
// A program's next record mostly belongs to the innermost call. Looking through all that are open is paid from a credit
// that each record adds to; a stream that overdraws it loses its outermost calls, counted, so that work is bounded
// whatever the records say.
#ifndef NFPROBE_CALLTREE_H
#define NFPROBE_CALLTREE_H
#include "array.h"
#include "columns.h"

enum {
	NFP_STACK_SPAN = 64 << 20, // calls further apart than this are on different stacks
	NFP_OPEN_MAX = 16384, // deeper than this: the outermost quarter is given up
	NFP_DOUBTFUL_MAX = 64, // more doubtful calls: the oldest is given up
	NFP_STEPS_PER_RECORD = 64, // looks at an open call that each record pays for
	NFP_STEPS_SAVED = 1
	    << 22, // of those that were not needed, for programs that have thousands of stacks
};

// The rows of calls under construction. A row with end_ticks 0 is open, one with function NFP_NONE is dead
// (its call will not be reported); self_ticks holds the time of children that were delivered already.
struct nfp_log {
	struct nfp_call *items;
	uint32_t count;
	uint32_t capacity;
	uint32_t irregular; // some rows are dead or have outlasted their parents: depths are not valid
};

enum nfp_open_flags {
	NFP_OPEN_DOUBTFUL = 1,
	NFP_OPEN_VALUE = 2,
	NFP_OPEN_AGED = 4, // was open at an earlier take
	NFP_OPEN_GONE = 8, // given up, until the next sweep
};

struct nfp_open {
	uint64_t value;
	uint64_t start_ticks;
	uint32_t sp;
	uint32_t function;
	uint32_t row; // in the log, or NFP_NONE: the call is paired but not reported
	uint32_t handed; // transmit and drop: first of its packets in the thread's handed list
	uint32_t moved; // its row among those on their way from log to log, or NFP_NONE (batch.c)
	uint16_t flags; // enum nfp_open_flags
	uint16_t role; // enum nfp_role
};

// What one probed call costs by itself: between its two time stamps, and in all.
struct nfp_costs {
	struct nfp_cost *items; // by function id
	uint32_t count;
	uint32_t capacity;
};

struct nfp_calltree {
	const struct nfp_costs *costs;
	struct nfp_open *items;
	uint32_t count;
	uint32_t capacity;
	uint32_t doubtful;
	uint32_t enclosing; // calls open when the batch began
	int64_t credit; // steps that may be taken; below 0: nfp_calltree_pay is due
	uint64_t paired;
	uint64_t unpaired_entries; // doubtful ones not included
	uint64_t unpaired_exits;
};

// Slow parts, see calltree.c.
void nfp_calltree_displace(struct nfp_calltree *tree, struct nfp_log *log, uint32_t sp, int entry);
uint32_t nfp_calltree_search(struct nfp_calltree *tree, uint32_t function, uint32_t sp);
int nfp_calltree_make_room(struct nfp_calltree *tree, struct nfp_log *log);
uint32_t nfp_calltree_parent(struct nfp_calltree *tree, uint32_t sp);
// Gives up the calls with this role: they will not be paired (counted).
void nfp_calltree_give_up(struct nfp_calltree *tree, struct nfp_log *log, uint16_t role);
// Gives up outermost calls until the credit is not overdrawn. Indices of open calls change.
void nfp_calltree_pay(struct nfp_calltree *tree, struct nfp_log *log);
void nfp_calltree_pull(struct nfp_calltree *tree, struct nfp_log *log, uint32_t index);
// Gives up all open calls: their exits may have been lost.
void nfp_calltree_clear(struct nfp_calltree *tree, struct nfp_log *log);
void nfp_calltree_deinit(struct nfp_calltree *tree);

static inline void nfp_calltree_earn(struct nfp_calltree *tree, uint64_t records)
{
	int64_t credit = tree->credit + (int64_t)records * NFP_STEPS_PER_RECORD;
	tree->credit = credit < NFP_STEPS_SAVED ? credit : NFP_STEPS_SAVED;
}

static inline void nfp_calltree_spend(struct nfp_calltree *tree, uint64_t steps)
{
	tree->credit -= (int64_t)steps;
}

// The place of the function's innermost open call, plus 1; 0: it has none.
static inline uint32_t nfp_calltree_innermost(struct nfp_calltree *tree, uint32_t function)
{
	uint32_t i = tree->count;
	while (i && tree->items[i - 1].function != function)
		i--;
	nfp_calltree_spend(tree, tree->count - i);
	return i;
}

// Whether `count` things may be done that are worth so many steps each; if so they are paid.
static inline int nfp_calltree_affords(struct nfp_calltree *tree, uint64_t count, uint32_t steps)
{
	if (tree->credit < (int64_t)(count * steps))
		return 0;
	nfp_calltree_spend(tree, count * steps);
	return 1;
}

// 1: a call at sp `outer` can enclose one at `inner`.
static inline int nfp_sp_encloses(uint32_t outer, uint32_t inner)
{
	int32_t distance = (int32_t)(outer - inner);
	return distance > 0 && distance < NFP_STACK_SPAN;
}

static inline struct nfp_call *nfp_log_append(struct nfp_log *log)
{
	if (log->count == log->capacity && !NFP_ARRAY_RESERVE(log, log->count + 1))
		return NULL;
	struct nfp_call *row = &log->items[log->count++];
	*row = (struct nfp_call){0};
	return row;
}

static inline void nfp_log_kill(struct nfp_log *log, uint32_t row)
{
	if (row == NFP_NONE)
		return;
	log->items[row].function = NFP_NONE;
	log->irregular = 1;
}

// The nearest call at or above `parent` that lasted until end_ticks, or NFP_NONE.
static inline uint32_t nfp_parent_climb(const struct nfp_call *calls, uint32_t parent, uint64_t end_ticks)
{
	while (parent != NFP_NONE && calls[parent].end_ticks < end_ticks)
		parent = calls[parent].parent;
	return parent;
}

// Appends an open row whose parent is `parent` (a row of the log or NFP_NONE); returns it or NFP_NONE.
static inline uint32_t nfp_log_open(struct nfp_log *log, uint64_t ticks, uint32_t function, uint32_t parent)
{
	struct nfp_call *row = nfp_log_append(log);
	if (!row)
		return NFP_NONE;
	row->start_ticks = ticks;
	row->function = function;
	row->parent = parent;
	row->batch = NFP_NONE;
	if (parent != NFP_NONE)
		row->depth = (uint16_t)(log->items[parent].depth + 1);
	return log->count - 1;
}

// Begins a call. Returns it, or NULL when there is no memory (counted).
static inline struct nfp_open *nfp_calltree_enter(struct nfp_calltree *tree, struct nfp_log *log,
                                                  uint64_t ticks, uint32_t function, uint32_t sp)
{
	uint32_t parent = tree->count - 1;
	if (tree->doubtful || (tree->count && !nfp_sp_encloses(tree->items[parent].sp, sp))) {
		nfp_calltree_displace(tree, log, sp, 1);
		parent = nfp_calltree_parent(tree, sp);
	}
	if (tree->count == tree->capacity) {
		if (!nfp_calltree_make_room(tree, log))
			return NULL;
		parent = nfp_calltree_parent(tree, sp);
	}
	uint32_t parent_row = parent == NFP_NONE ? NFP_NONE : tree->items[parent].row;
	struct nfp_open *open = &tree->items[tree->count++];
	*open = (struct nfp_open){.start_ticks = ticks, .sp = sp, .function = function};
	open->row = nfp_log_open(log, ticks, function, parent_row);
	return open;
}

// Finds the open call that an exit or a value belongs to; NFP_NONE when there is none.
static inline uint32_t nfp_calltree_find(struct nfp_calltree *tree, uint32_t function, uint32_t sp)
{
	uint32_t top = tree->count - 1;
	if (tree->count && tree->items[top].sp == sp && tree->items[top].function == function &&
	    !(tree->items[top].flags & NFP_OPEN_DOUBTFUL))
		return top;
	return nfp_calltree_search(tree, function, sp);
}

// The probes of a call and of all calls in it lengthen the call around it.
static inline void nfp_calltree_charge(const struct nfp_costs *costs, struct nfp_log *log,
                                       struct nfp_call *row)
{
	if (row->function >= costs->count)
		return;
	const struct nfp_cost *cost = &costs->items[row->function];
	uint64_t around = (uint64_t)row->cost_ticks + cost->whole_ticks;
	if (row->parent != NFP_NONE) {
		uint32_t *sum = &log->items[row->parent].cost_ticks;
		*sum = *sum + around > UINT32_MAX ? UINT32_MAX : (uint32_t)(*sum + around);
	}
	around += cost->inside_ticks - (uint64_t)cost->whole_ticks;
	row->cost_ticks = around > UINT32_MAX ? UINT32_MAX : (uint32_t)around;
}

// Ends the open call `index`.
static inline void nfp_calltree_leave(struct nfp_calltree *tree, struct nfp_log *log, uint32_t index,
                                      uint64_t ticks, uint16_t flags)
{
	const struct nfp_open *open = &tree->items[index];
	if (open->row != NFP_NONE) {
		struct nfp_call *row = &log->items[open->row];
		row->end_ticks = ticks;
		row->value = open->value;
		row->flags |= flags | (open->flags & NFP_OPEN_VALUE ? NFP_CALL_VALUE : 0);
		if (tree->costs && tree->costs->count)
			nfp_calltree_charge(tree->costs, log, row);
	}
	tree->paired++;
	if (index + 1 == tree->count && !(open->flags & NFP_OPEN_DOUBTFUL) && tree->enclosing < tree->count)
		tree->count--;
	else
		nfp_calltree_pull(tree, log, index);
}
#endif
