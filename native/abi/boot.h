// SPDX-License-Identifier: Apache-2.0
// The boot page: how the monitor starts the helper thread in a target. The monitor maps two regions there,
// code (bootstrap.c, read-execute) and data (this structure, then a stack), through one thread that it has
// stopped at a safe place, lets that thread run nfp_boot_start, and lets it go. All else happens on the
// helper thread.
#ifndef NFPROBE_BOOT_H
#define NFPROBE_BOOT_H
#include <stdint.h>

#define NFP_BOOT_CPU_WORDS 16

// cdef begin
enum nfp_boot_stage {
	NFP_BOOT_NONE = 0,
	NFP_BOOT_WANTS_LIBRARY = 1, // library_fd is an empty memory file: the monitor fills it
	NFP_BOOT_LIBRARY_FILLED = 2, // said by the monitor
	NFP_BOOT_SESSION_READY = 3, // session_fd is the session's memory file
	NFP_BOOT_GO = 4,            // said by the monitor: it holds the session's lock
	NFP_BOOT_FAILED = 5,        // message says why; the helper thread is gone
	// The target has no /proc through which a memory file can be loaded: the monitor writes the library to a
	// file that the target can see, puts its path into library_path and says LIBRARY_FILLED again. An empty
	// path: there is no place for one.
	NFP_BOOT_WANTS_FILE = 6,
};

struct nfp_boot {
	// Filled in by the monitor. Addresses of functions in the target's libc.
	uint64_t pthread_create;
	uint64_t pthread_attr_init;
	uint64_t pthread_attr_setdetachstate;
	uint64_t pthread_attr_setstacksize;
	uint64_t dlopen;
	uint64_t dlsym;
	uint64_t dlerror;
	uint64_t entry; // nfp_helper_main of a library that is there already, or 0
	uint64_t ring_bytes;
	uint64_t prepared_rings;
	uint64_t cpus[16]; // NFP_BOOT_CPU_WORDS: where the helper thread may run
	uint64_t regions[4]; // address and bytes of the two mappings, unmapped by the helper
	char library_name[64];
	char library_path[256]; // filled in when the helper wants a file
	// Answers.
	int32_t created; // result of pthread_create
	int32_t stage; // enum nfp_boot_stage
	int32_t library_fd;
	int32_t session_fd;
	char message[512];
};
// cdef end
#endif
