// SPDX-License-Identifier: Apache-2.0
// What a hostile target has at hand: its own half of the conversation with the monitor (native/abi/boot.h), and a
// session's memory that it has made itself.
#ifndef NFPROBE_TEST_HOSTILE_H
#define NFPROBE_TEST_HOSTILE_H
#define _GNU_SOURCE
#include "abi/boot.h"
#include <fcntl.h>
#include "abi/session.h"
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOUND_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define RING_BYTES (64u << 10)
#define TOTAL_BYTES (NFP_RING_OFFSET + (uint64_t)NFP_THREAD_COUNT * RING_BYTES)

// A session as native/probe/helper.c makes one.
struct hostile_session {
	int fd;
	uint8_t *memory; // header and tables
	struct nfp_session_header *header;
	int (*count)(void); // answers NFP_COMMAND_COUNTERS
	int (*map_file)(
	    const struct nfp_session_header *header); // answers NFP_COMMAND_MAP_FILE; NULL: with an error
};

// What trampolines read: a thread whose gate is closed.
static char closed_thread[NFP_THREAD_BYTES] __attribute__((aligned(64)));
static __thread void *thread_word = closed_thread;

static inline int32_t word_offset(void)
{
	uint64_t base;
	__asm__("mov %%fs:0, %0" : "=r"(base));
	return (int32_t)((uint64_t)(uintptr_t)&thread_word - base);
}

// With so many bytes, and so many in its header.
static inline struct hostile_session make_session(uint64_t bytes, int seals)
{
	struct hostile_session session = {
	    .fd = memfd_create("nfprobe-session", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
	if (session.fd < 0 || ftruncate(session.fd, (off_t)bytes) != 0 ||
	    (seals && fcntl(session.fd, F_ADD_SEALS, seals)))
		_exit(7);
	session.memory = mmap(NULL, NFP_ARENA_OFFSET, PROT_READ | PROT_WRITE, MAP_SHARED, session.fd, 0);
	if (session.memory == MAP_FAILED)
		_exit(8);
	session.header = (void *)session.memory;
	if (bytes < NFP_PROGRAM_OFFSET)
		return session;
	*session.header = (struct nfp_session_header){.magic = NFP_SESSION_MAGIC,
	                                              .version = NFP_SESSION_VERSION,
	                                              .target_pid = (uint32_t)getpid(),
	                                              .total_bytes = TOTAL_BYTES,
	                                              .ring_bytes = RING_BYTES,
	                                              .ring_stride = RING_BYTES,
	                                              .state = NFP_STATE_READY,
	                                              .tls_offset = (uint32_t)word_offset()};
	return session;
}

static inline void pause_briefly(void)
{
	usleep(200);
}

static inline void set_stage(struct nfp_boot *boot, int stage)
{
	__atomic_store_n(&boot->stage, stage, __ATOMIC_RELEASE);
}

// A monitor that has given up says nothing: then the target goes on as if it had not been there.
static inline int await_stage(struct nfp_boot *boot, int stage)
{
	for (int i = 0; i < 50000; i++, pause_briefly())
		if (__atomic_load_n(&boot->stage, __ATOMIC_ACQUIRE) == stage)
			return 1;
	return 0;
}

static inline void ask_for_library(struct nfp_boot *boot, int fd)
{
	boot->library_fd = fd;
	set_stage(boot, NFP_BOOT_WANTS_LIBRARY);
}

static inline void offer_session(struct nfp_boot *boot, int fd)
{
	boot->session_fd = fd;
	set_stage(boot, NFP_BOOT_SESSION_READY);
}

static inline int32_t carry_out(struct hostile_session *session)
{
	const struct nfp_session_header *header = session->header;
	uint64_t address = header->argument[0], offset = header->argument[1], bytes = header->argument[2];
	switch (header->command) {
	case NFP_COMMAND_MAP_ARENA:
		return mmap((void *)address, bytes, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_FIXED_NOREPLACE,
		            session->fd, (off_t)offset) == (void *)address
		           ? 0
			   : -1;
	case NFP_COMMAND_MAP_FILE:
		return session->map_file ? session->map_file(session->header) : -1;
	case NFP_COMMAND_OPEN:
		session->header->state = NFP_STATE_ARMED;
		return 0;
	case NFP_COMMAND_COUNTERS:
		return session->count ? session->count() : -1;
	case NFP_COMMAND_CLOSE:
	case NFP_COMMAND_COUNT:
	case NFP_COMMAND_REGISTER_CODE:
	case NFP_COMMAND_REGISTER_FRAMES:
		return 0;
	default:
		return -1;
	}
}

// Answers commands as the helper thread does, until it is told to leave; `meanwhile` is called before each look.
static inline void serve(struct hostile_session *session, void (*meanwhile)(struct hostile_session *session))
{
	struct nfp_session_header *header = session->header;
	for (;; usleep(20)) {
		if (meanwhile)
			meanwhile(session);
		uint32_t request = __atomic_load_n(&header->request, __ATOMIC_ACQUIRE);
		if (request == header->reply)
			continue;
		if (header->command == NFP_COMMAND_LEAVE) {
			header->state = NFP_STATE_SILENT;
			return;
		}
		header->result = carry_out(session);
		__atomic_store_n(&header->reply, request, __ATOMIC_RELEASE);
	}
}
#endif
