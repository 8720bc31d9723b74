// SPDX-License-Identifier: Apache-2.0
// How one report of a seized thread is answered, so that the target behaves as without us.
#ifndef NFPROBE_PTRACE_EVENTS_H
#define NFPROBE_PTRACE_EVENTS_H
#include "watch.h"

enum nfp_watched { // in nfp_seized.state
	RUNNING,
	NEWBORN, // its first stop is still to come
	LISTENING, // stopped by a signal of its own
	AWAITED, // interrupted
	HELD,
	HELD_LISTENING,
	HELD_CHILD, // a process that has run nothing yet
};

// `status` as waitpid gives it.
void nfp_react(struct nfp_watch *watch, pid_t tid, int status);
void nfp_go_on(struct nfp_seized *thread, int signal);
// A process that the target has made: whole code, then it runs untraced.
void nfp_let_child_go(struct nfp_watch *watch, struct nfp_seized *child);
#endif
