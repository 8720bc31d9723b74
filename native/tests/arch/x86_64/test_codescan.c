// SPDX-License-Identifier: Apache-2.0
// Random code, of likely instructions and of noise: never a byte beyond its end, never an event beyond the room. Run
// under AddressSanitizer and UBSan. That it is right is tests/fuzz/test_fuzz_instructions.py's.
#include "check.h"
#include "codescan.h"
#include "framerows.h"
#include "core/arch/x86_64/instruction.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES_MAX = 96, FUNCTIONS = 3, PROGRAM_BYTES = 12 };

// Whole instructions, cut off at the code's end; one byte of 64 is noise.
static void write_code(unsigned long *state, uint8_t *code, uint64_t bytes)
{
	static const char *const likely[] = {"\x48\x89\xe5",
	                                     "\x48\x8b\x44\x24\x10",
	                                     "\x48\x8d\x44\x24\x08",
	                                     "\x5d",
	                                     "\x41\x54",
	                                     "\xe8\x11\x22\x33\x01",
	                                     "\x0f\x84\x11\x11",
	                                     "\x75\x10",
	                                     "\xff\x25\x11\x22\x33\x44",
	                                     "\xff\xe0",
	                                     "\xc3",
	                                     "\xc2\x08\x01",
	                                     "\x66\x0f\x6f\xc1",
	                                     "\xf3\x0f\x1e\xfa",
	                                     "\x66\x2e\x0f\x1f\x84",
	                                     "\x8b\x45\x10",
	                                     "\x48\x8d\x3d\x11\x11",
	                                     "\xf0\x48\x0f\xb1\x17",
	                                     "\x66\x0f\x3a\x0f",
	                                     "\x62\xf1",
	                                     "\xc5\xf8\x77",
	                                     "\x4c\x8d\x54\x24\x08",
	                                     "\x41\xff\x72\xf8",
	                                     "\x41\x52",
	                                     "\x4c\x8b\x55\xf8",
	                                     "\x49\x8d\x62\xf8",
	                                     "\x4d\x8b\x12",
	                                     "\x45\x31\xd2",
	                                     "\x75\xf0"};
	for (uint64_t index = 0; index < bytes;) {
		const char *next = likely[next_random(state) % (sizeof(likely) / sizeof(likely[0]))];
		for (; *next && index < bytes; next++) {
			unsigned long random = next_random(state);
			code[index++] = (random & 63) ? (uint8_t)*next : (uint8_t)(random >> 16);
		}
	}
}

static void check_instructions(const uint8_t *code, uint64_t bytes)
{
	struct nfp_decoded decoded, alone;
	for (uint64_t offset = 0; offset < bytes; offset++) {
		uint32_t length = nfp_instruction_decode(code + offset, bytes - offset, offset, &decoded);
		CHECK(length <= 15 && length <= bytes - offset);
		if (!length)
			continue;
		CHECK(decoded.bytes == length && decoded.kind <= NFP_DECODED_TRAP);
		CHECK(decoded.base <= NFP_REGISTER_NEXT && decoded.to <= NFP_REGISTER_NONE);
		CHECK(nfp_instruction_decode(code + offset, length, offset, &alone) == length);
		CHECK(memcmp(&decoded, &alone, sizeof(alone)) == 0);
		CHECK(nfp_instruction_decode(code + offset, length - 1, offset, &alone) == 0);
	}
	uint64_t *targets = malloc((bytes + 1) * sizeof(*targets));
	int64_t count = nfp_code_targets(code, bytes, 0, targets);
	CHECK(count >= -1 && count <= (int64_t)bytes);
	free(targets);
}

static int check_scan(unsigned long *state, const uint8_t *code, uint64_t bytes)
{
	static const uint8_t plain[PROGRAM_BYTES] = {0x41, 0x0e, 0x10, 0x86, 0x02, 0x43, 0x0d, 0x06};
	static const uint8_t aligned[PROGRAM_BYTES] = {0x45, 0x0c, 0x0a, 0x00, 0x46, 0x0f,
	                                               0x03, 0x76, 0x78, 0x06, 0x4a, 0x00};
	const uint8_t *program = next_random(state) % 2 ? plain : aligned;
	struct nfp_code_function functions[FUNCTIONS] = {{0}};
	for (int index = 0; index < FUNCTIONS; index++) {
		functions[index].start = 0x1000 + (uint64_t)index * BYTES_MAX;
		functions[index].code = next_random(state) % (bytes + 2);
		functions[index].bytes = next_random(state) % (bytes + 2) >> next_random(state) % 4;
		functions[index].program =
		    next_random(state) % 4 ? 0 : next_random(state) % (PROGRAM_BYTES + 2);
		functions[index].program_bytes = (uint32_t)(next_random(state) % (PROGRAM_BYTES + 2));
		functions[index].cfa_register =
		    next_random(state) % 8 ? 7 : (int32_t)(next_random(state) % 20) - 2;
		functions[index].cfa_offset = 8;
	}
	struct nfp_code_event *events = malloc((bytes + 1) * sizeof(*events));
	int64_t *rows = malloc((NFP_FRAME_ROWS_MAX + 1) * NFP_FRAME_ROW_WORDS * sizeof(*rows));
	uint64_t stubs[] = {0x1000, next_random(state) % BYTES_MAX};
	uint64_t marks_room = next_random(state) % 4 ? bytes + 1 : next_random(state) % (bytes + 1);
	uint8_t *marks = malloc(marks_room ? marks_room : 1);
	struct nfp_code_scan scan = {.file = code,
	                             .file_bytes = bytes,
	                             .programs = program,
	                             .programs_bytes = PROGRAM_BYTES,
	                             .functions = functions,
	                             .count = FUNCTIONS,
	                             .events = events,
	                             .events_room = bytes + 1,
	                             .rows = rows,
	                             .rows_room = NFP_FRAME_ROWS_MAX + 1,
	                             .entry_bytes = 64,
	                             .stubs = stubs,
	                             .stubs_count = 1,
	                             .marks = marks,
	                             .marks_room = marks_room};
	int known = 0;
	CHECK(rows);
	while (scan.done < scan.count) {
		uint64_t before = scan.done;
		scan.events_count = scan.rows_count = 0;
		nfp_code_scan(&scan);
		CHECK(scan.done > before && scan.events_count <= scan.events_room);
		for (; before < scan.done; before++) {
			const struct nfp_code_function *function = functions + before;
			known += function->trouble != NFP_CODE_UNKNOWN;
			CHECK(function->first_event + function->events <= scan.events_count);
			for (uint32_t event = 0; event < function->events; event++)
				CHECK(events[function->first_event + event].offset < function->bytes);
		}
	}
	free(marks);
	free(rows);
	free(events);
	return known;
}

int main(int count, char **arguments)
{
	int rounds = (int)searches(count, arguments, 60000);
	unsigned long state = 20260301;
	int known = 0;
	for (int round = 0; round < rounds; round++) {
		uint64_t bytes = next_random(&state) % BYTES_MAX;
		uint8_t *code = malloc(bytes ? bytes : 1);
		write_code(&state, code, bytes);
		check_instructions(code, bytes);
		known += check_scan(&state, code, bytes);
		free(code);
	}
	CHECK(known > rounds / 20);
	printf("%d pieces of random code, %d functions scanned\n", rounds, known);
	return 0;
}
