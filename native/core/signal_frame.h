// SPDX-License-Identifier: Apache-2.0
// Signal frames: a thread that runs a signal handler has the program counter to which it will return on its
// stack. arch/x86_64/signal_frame.c knows the layout.
#ifndef NFPROBE_SIGNAL_FRAME_H
#define NFPROBE_SIGNAL_FRAME_H
#include "change.h"

// Moves the program counters in the signal frames above `stack_pointer`. Returns how many, or -errno.
int nfp_move_in_frames(int memory, uint64_t stack_pointer, const struct nfp_plan *plan);
#endif
