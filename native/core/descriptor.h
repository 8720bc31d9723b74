// SPDX-License-Identifier: Apache-2.0
// A target's file descriptors, taken as they are (pidfd_getfd) and never opened by their path: that would give rights
// that the target does not have, would truncate, and would wait for whoever is at the other end.
#ifndef NFPROBE_DESCRIPTOR_H
#define NFPROBE_DESCRIPTOR_H
#include <stdint.h>

// cdef begin
enum nfp_descriptor_kind {
	NFP_DESCRIPTOR_MEMORY = 0, // a file that can have seals: memory files, files of tmpfs
	NFP_DESCRIPTOR_CHANNEL = 1, // a Unix socket for messages whose two ends the process itself has made
};

// A descriptor of a process, as one of this process, closed on exec. Returns it, or -errno: -EBADF when the process has
// none of this number, -EMEDIUMTYPE when it is of another kind, -ENOSYS on kernels before Linux 5.6.
//
// What is of another kind is closed by a child that is not waited for: to close a file of a file system that the target
// serves itself (FUSE) waits for the target.
int nfp_descriptor_take(int32_t pid, int32_t number, enum nfp_descriptor_kind kind);
// cdef end
#endif
