// SPDX-License-Identifier: Apache-2.0
// What a target has that only ptrace tells: the seccomp filters and the thread base of its threads. Each
// thread is stopped by itself, for microseconds, and nothing in it is changed.
#ifndef NFPROBE_INSPECT_H
#define NFPROBE_INSPECT_H
#include <stdint.h>

// cdef begin
struct nfp_instruction { // struct sock_filter
	uint16_t code;
	uint8_t jump_true;
	uint8_t jump_false;
	uint32_t value;
};
// Reads the filters of a thread, the oldest first, one after the other into `programs`, and the number of
// instructions of each into `lengths`. Returns how many filters there are, or -errno: -EACCES without
// CAP_SYS_ADMIN, or from under a filter; -E2BIG when there is no room for them.
int nfp_read_filters(int32_t tid, struct nfp_instruction *programs, uint32_t room, uint32_t *lengths,
                     uint32_t lengths_room);
// What nfp_thread_base is in a thread. Returns 0 or -errno.
int nfp_read_thread_base(int32_t tid, uint64_t *base);
// cdef end
#endif
