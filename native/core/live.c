// SPDX-License-Identifier: Apache-2.0
// For each batch of sites: islands -> a breakpoint over the first bytes -> sync -> the other ones -> sync -> the
// first ones -> sync. "sync" makes every CPU that runs the target drop what it has fetched of the old code: the helper
// thread in the target calls membarrier. watch.c sends on who meets a breakpoint. Batches are small, so that a
// busy function is slow for some hundred microseconds only, not as long as thousands of others are changed.
#define _GNU_SOURCE
#include "live.h"
#include "address_space.h"
#include "patch_process.h"
#include "mailbox.h"
#include "ptrace.h"
#include "trap.h"
#include "watch.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define BATCH 64
#define LOOK_EVERY 8 // writes between two looks at what the threads report
#define RELEASE_PATIENCE_NS 2000000000u
#define HELPER_PRIORITY (-20)

struct patch {
	struct nfp_live *live;
	struct nfp_session_header *header;
	struct nfp_change *changes;
	uint32_t count;
	struct nfp_trap_use trap;
	struct nfp_watch watch;
};

static int fail(struct nfp_live *live, int error, const char *what)
{
	snprintf(live->message, sizeof(live->message), "%s: %s", what, strerror(-error));
	return error;
}

// ---- the helper thread -----------------------------------------------------------------------------------

static int ask(struct patch *patch, enum nfp_sync what)
{
	const uint64_t arguments[4] = {what};
	uint64_t deadline_ns = nfp_now_ns() + patch->live->patience_ns;
	uint32_t request = nfp_mailbox_post(patch->header, NFP_COMMAND_SYNC_CORE, arguments);
	while (!nfp_mailbox_answered(patch->header, request, 20000)) {
		nfp_watch_events(&patch->watch);
		if (!nfp_watch_has_target(&patch->watch))
			return -ESRCH;
		if (nfp_now_ns() > deadline_ns)
			return -ETIMEDOUT;
	}
	nfp_watch_events(&patch->watch);
	return patch->header->result ? -EPROTO : 0; // no number of the target's means anything here
}

// The kernel takes a target's own SIGTRAP handler away when a thread meets a breakpoint while it blocks SIGTRAP.
static int has_lost_handler(const struct patch *patch)
{
	return patch->trap.is_caught && !nfp_trap_is_caught(patch->live->pid);
}

// Once more when all threads are gone their way: one may have met the last breakpoint long before it reported that.
static void mend_at_last(struct patch *patch)
{
	const uint64_t arguments[4] = {NFP_SYNC_MEND_TRAP};
	int32_t result;
	if (!patch->watch.replaced && has_lost_handler(patch))
		nfp_mailbox_ask(patch->header, NFP_COMMAND_SYNC_CORE, arguments, patch->live->patience_ns,
		                patch->live->memory_fd, &result);
}

// ---- bytes -----------------------------------------------------------------------------------------------

static int put(struct patch *patch, uint64_t address, const uint8_t *bytes, uint32_t count)
{
	return nfp_memory_write(patch->live->memory_fd, address, bytes, count);
}

// What stands behind a breakpoint at the site.
static int put_tail(struct patch *patch, const struct nfp_change *change, const uint8_t *bytes)
{
	return put(patch, change->address + NFP_TRAP_BYTES, bytes + NFP_TRAP_BYTES,
	           change->bytes - NFP_TRAP_BYTES);
}

static int holds(struct patch *patch, uint64_t address, const uint8_t *bytes, uint32_t count)
{
	uint8_t found[32];
	return nfp_memory_read(patch->live->memory_fd, address, found, count) == 0 &&
	       memcmp(found, bytes, count) == 0;
}

// What is done to each site of a batch, in this order.
static int check_site(struct patch *patch, struct nfp_change *change)
{
	int sound =
	    change->bytes >= NFP_SITE_BYTES_MIN &&
	    nfp_plan_has(&patch->watch.plan, (uint32_t)(change - patch->changes)) &&
	    holds(patch, change->address, change->expected, change->bytes) &&
	    (!change->island || holds(patch, change->island, change->island_expected, NFP_ISLAND_BYTES));
	change->failed = sound ? NFP_CHANGE_MADE : NFP_CHANGE_UNEXPECTED;
	return 0;
}

static int write_island(struct patch *patch, struct nfp_change *change)
{
	if (!change->island || patch->live->restores)
		return 0;
	return put(patch, change->island, change->island_replacement, NFP_ISLAND_BYTES);
}

static int write_trap(struct patch *patch, struct nfp_change *change)
{
	patch->watch.stood[change - patch->changes] = 1;
	return put(patch, change->address, NFP_TRAP, NFP_TRAP_BYTES);
}

static int write_tail(struct patch *patch, struct nfp_change *change)
{
	return put_tail(patch, change, change->replacement);
}

static int write_first(struct patch *patch, struct nfp_change *change)
{
	return put(patch, change->address, change->replacement, NFP_TRAP_BYTES);
}

static int verify_site(struct patch *patch, struct nfp_change *change)
{
	if (!holds(patch, change->address, change->replacement, change->bytes))
		change->failed = NFP_CHANGE_UNREAD;
	return 0;
}

static int each(struct patch *patch, int (*step)(struct patch *patch, struct nfp_change *change))
{
	for (uint32_t i = patch->watch.from; i < patch->watch.to; i++) {
		if (step != check_site && patch->changes[i].failed)
			continue;
		int error = step(patch, &patch->changes[i]);
		if (error)
			return error;
		if (i % LOOK_EVERY == 0)
			nfp_watch_events(&patch->watch);
	}
	return 0;
}

// ---- a batch ---------------------------------------------------------------------------------------------

// Old bytes in place of what a failed write has left. Nobody is inside a site: it is one instruction.
static void undo_batch(struct patch *patch)
{
	for (uint32_t i = patch->watch.from; i < patch->watch.to; i++) {
		struct nfp_change *change = &patch->changes[i];
		if (change->failed)
			continue;
		if (patch->watch.stood[i]) {
			put(patch, change->address, NFP_TRAP, NFP_TRAP_BYTES);
			ask(patch, NFP_SYNC_CORES);
			put_tail(patch, change, change->expected);
			ask(patch, NFP_SYNC_CORES);
			put(patch, change->address, change->expected, NFP_TRAP_BYTES);
		}
		change->failed = NFP_CHANGE_LEFT;
	}
	ask(patch, NFP_SYNC_CORES);
}

// The helper thread does not answer: it is stopped, killed, or starved. With all threads stopped, no CPU has
// old code under way, and the batch is brought to its end.
static int finish_stopped(struct patch *patch)
{
	uint64_t start_ns = nfp_now_ns();
	nfp_watch_hold(&patch->watch, patch->live->patience_ns);
	int error = each(patch, write_tail);
	if (!error)
		error = each(patch, write_first);
	nfp_watch_resume(&patch->watch);
	patch->live->stops = 1;
	patch->live->stopped_ns = nfp_now_ns() - start_ns;
	return error;
}

static int change_batch(struct patch *patch)
{
	static int (*const steps[])(struct patch *, struct nfp_change *) = {write_trap, write_tail,
	                                                                    write_first};
	int error = each(patch, check_site), late = 0;
	if (!error)
		error = each(patch, write_island);
	for (int step = 0; step < 3 && !error && !late; step++) {
		error = each(patch, steps[step]);
		if (!error)
			late = ask(patch, NFP_SYNC_CORES);
	}
	if (late && late != -ESRCH)
		error = finish_stopped(patch);
	if (error) {
		undo_batch(patch);
		return fail(patch->live, error, "the target's code cannot be written through /proc/PID/mem");
	}
	if (late)
		fail(patch->live, late, "the helper thread in the target does not answer");
	each(patch, verify_site);
	return late;
}

static int change_all(struct patch *patch)
{
	int error = 0;
	for (uint32_t from = 0; from < patch->count && !error; from += BATCH) {
		patch->watch.from = from;
		patch->watch.to = from + BATCH < patch->count ? from + BATCH : patch->count;
		error = change_batch(patch);
		if (has_lost_handler(patch))
			ask(patch, NFP_SYNC_MEND_TRAP);
	}
	return error;
}

// Every thread has left the islands that no site leads to any more.
static void restore_islands(struct patch *patch)
{
	for (uint32_t i = 0; i < patch->count; i++) {
		struct nfp_change *change = &patch->changes[i];
		int undone = !patch->live->restores && change->failed == NFP_CHANGE_LEFT &&
		             holds(patch, change->island, change->island_replacement, NFP_ISLAND_BYTES);
		int restored = patch->live->restores && change->failed == NFP_CHANGE_MADE;
		if (!change->island || !(undone || restored))
			continue;
		const uint8_t *bytes = undone ? change->island_expected : change->island_replacement;
		if (patch->watch.left || put(patch, change->island, bytes, NFP_ISLAND_BYTES) != 0)
			change->failed = undone ? NFP_CHANGE_LEFT : NFP_CHANGE_ISLAND_LEFT;
	}
}

// ---- all -------------------------------------------------------------------------------------------------

static void run(struct patch *patch, int *error)
{
	int priority = patch->trap.helper ? getpriority(PRIO_PROCESS, (id_t)patch->trap.helper) : 0;
	if (patch->trap.helper) // a breakpoint stands while it is waited for
		setpriority(PRIO_PROCESS, (id_t)patch->trap.helper, HELPER_PRIORITY);
	if (patch->trap.is_caught)
		*error = ask(patch, NFP_SYNC_KEEP_TRAP);
	if (!*error)
		*error = ask(patch, NFP_SYNC_CORES); // answers at all?
	if (*error)
		*error = fail(patch->live, -EOPNOTSUPP, "the helper thread in the target does not answer");
	else
		*error = change_all(patch);
	if (patch->trap.helper)
		setpriority(PRIO_PROCESS, (id_t)patch->trap.helper, priority);
}

// As long as nobody has changed them: an island whose site is not restored must stay.
static void leave_all(struct nfp_change *changes, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		changes[i].failed = NFP_CHANGE_LEFT;
}

static int change_here(struct nfp_live *live, struct nfp_session_header *header, struct nfp_change *changes,
                       uint32_t count)
{
	struct patch patch = {.live = live, .header = header, .changes = changes, .count = count};
	struct nfp_priority before;
	uint64_t start_ns = nfp_now_ns();
	leave_all(changes, count);
	nfp_trap_look(live->pid, header->helper_tid, &patch.trap);
	if (patch.trap.refusal) {
		snprintf(live->message, sizeof(live->message), "%s", patch.trap.refusal);
		return -EOPNOTSUPP;
	}
	nfp_priority_boost(&before);
	int error = nfp_watch_begin(&patch.watch, live->pid, live->memory_fd, changes, count);
	leave_all(changes, count); // its plan has marked them
	if (error)
		error = fail(live, error,
		             error == -ESTALE ? "the process has started another program"
		                              : "a thread of the target cannot be seized");
	else
		run(&patch, &error);
	patch.watch.looks = live->restores || error;
	nfp_watch_release(&patch.watch, RELEASE_PATIENCE_NS);
	mend_at_last(&patch);
	restore_islands(&patch);
	nfp_priority_restore(&before);
	live->threads = patch.watch.threads.count;
	live->traps = patch.watch.traps;
	live->moved = patch.watch.moved;
	live->children = patch.watch.children;
	for (uint32_t i = 0; i < count; i++)
		live->changed +=
		    changes[i].failed == NFP_CHANGE_MADE || changes[i].failed == NFP_CHANGE_ISLAND_LEFT;
	live->took_ns = nfp_now_ns() - start_ns;
	return error;
}

struct work {
	struct nfp_live *live;
	struct nfp_session_header *header;
	struct nfp_change *changes;
	uint32_t count;
};

static int do_work(void *shared)
{
	struct work *work = shared;
	return change_here(work->live, work->header, work->changes, work->count);
}

int nfp_change_live(struct nfp_live *live, struct nfp_session_header *header, struct nfp_change *changes,
                    uint32_t count)
{
	struct work work = {live, header, changes, count};
	return nfp_patch_process(do_work, &work);
}
