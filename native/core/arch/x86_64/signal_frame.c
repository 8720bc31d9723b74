// SPDX-License-Identifier: Apache-2.0
// The kernel's struct rt_sigframe, from the stack pointer of the handler's caller upwards:
//
//   0    pretcode: address of the restorer, mov $15,%rax; syscall
//   8    ucontext: flags, link, stack (40 bytes), then sigcontext: r8..r15, di, si, bp, bx, dx, ax, cx, sp, ip
//   176  rip
//   192  cs
#define _GNU_SOURCE
#include "arch/arch.h"
#include "change.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define SCANNED_BYTES (128 << 10) // of stack that a handler and what it calls may use
#define CHUNK_BYTES 4096
#define RIP_OFFSET 176
#define CS_FROM_RIP 16
#define USER_CS 0x33

static const uint8_t restorer[] = {0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05};

static int is_in_frame(int memory, uint64_t address)
{
	uint64_t pretcode, segments;
	uint8_t code[sizeof(restorer)];
	return pread(memory, &pretcode, 8, (off_t)(address - RIP_OFFSET)) == 8 &&
	       pread(memory, &segments, 8, (off_t)(address + CS_FROM_RIP)) == 8 &&
	       (segments & 0xffff) == USER_CS &&
	       pread(memory, code, sizeof(code), (off_t)pretcode) == sizeof(code) &&
	       memcmp(code, restorer, sizeof(code)) == 0;
}

int nfp_move_in_frames(int memory, uint64_t stack_pointer, const struct nfp_plan *plan)
{
	uint64_t chunk[CHUNK_BYTES / 8];
	if (plan->span_count == 0)
		return 0;
	const struct nfp_span *last = &plan->spans[plan->span_count - 1];
	uint64_t low = plan->spans[0].address, high = last->address + last->bytes;
	uint64_t at = stack_pointer & ~(uint64_t)7, end = at + SCANNED_BYTES;
	int moved = 0;
	while (at < end) {
		uint64_t want =
		    CHUNK_BYTES - at % CHUNK_BYTES; // up to the page's end: the next may not be there
		ssize_t bytes = pread(memory, chunk, want, (off_t)at);
		for (ssize_t i = 0; i < bytes / 8; i++) {
			uint64_t place, address = at + 8 * (uint64_t)i;
			if (chunk[i] < low || chunk[i] >= high)
				continue;
			int found = nfp_plan_place(plan, chunk[i], &place);
			if (found == 0 || !is_in_frame(memory, address))
				continue;
			if (found < 0 || pwrite(memory, &place, 8, (off_t)address) != 8)
				return -EBUSY;
			moved++;
		}
		if (bytes != (ssize_t)want)
			break;
		at += want;
	}
	return moved;
}
