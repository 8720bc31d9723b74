// SPDX-License-Identifier: Apache-2.0
// The threads of a target while a breakpoint may stand in its code: seized, not stopped. A thread that meets it
// stops for this process only, before any signal is delivered, and goes on at the trampoline; everything
// else that happens to the target's threads happens as without us.
#ifndef NFPROBE_WATCH_H
#define NFPROBE_WATCH_H
#include "thread_set.h"

enum nfp_watch_mode {
	NFP_WATCH_FOLLOW, // threads run on
	NFP_WATCH_HOLD, // they stay where they stop
	NFP_WATCH_RELEASE, // they are let go where they stop
};

struct nfp_watch {
	struct nfp_thread_set threads;
	struct nfp_plan plan;
	int memory; // /proc/PID/mem, the caller's
	enum nfp_watch_mode mode;
	uint32_t from, to; // the changes under way
	uint8_t *stood; // by change: a breakpoint has stood at its site
	int looks; // when threads are let go: also at islands and signal frames
	int replaced; // the target executes another program
	uint32_t traps, moved, children;
	uint32_t left; // threads that could not be visited
};

// Seizes all threads. Returns 0 or -errno, -ESTALE when the process has started another program.
int nfp_watch_begin(struct nfp_watch *watch, int32_t pid, int memory, struct nfp_change *changes,
                    uint32_t count);
// Answers to what has happened, not to everything where that is much, and returns whether anything has. Never waits.
int nfp_watch_events(struct nfp_watch *watch);
// The same, and sleeps for some microseconds when nothing has happened.
void nfp_watch_pause(struct nfp_watch *watch);
// Whether there is still a target with this program.
int nfp_watch_has_target(const struct nfp_watch *watch);
// Stops all threads and lets them run on: the way out when the target's helper thread does not answer.
void nfp_watch_hold(struct nfp_watch *watch, uint64_t patience_ns);
void nfp_watch_resume(struct nfp_watch *watch);
// Visits every thread singly and lets it go. None may meet a breakpoint any more.
void nfp_watch_release(struct nfp_watch *watch, uint64_t patience_ns);
#endif
