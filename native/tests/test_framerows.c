// SPDX-License-Identifier: Apache-2.0
// Random frame programs, of likely instructions and of noise: never a byte beyond the program or the rows, and rows
// that go forwards. Run under AddressSanitizer and UBSan. That they are right is tests/fuzz/test_fuzz_ehframe.py's.
#include "check.h"
#include "framerows.h"
#include <stdint.h>
#include <stdlib.h>

enum { ROUNDS = 300000, BYTES_MAX = 40, ROWS = NFP_FRAME_ROWS_MAX * NFP_FRAME_ROW_WORDS };

// Whole instructions, cut off at the program's end; one byte of 64 is noise.
static void write_program(unsigned long *state, uint8_t *program, uint32_t bytes)
{
	static const char *const likely[] = {"\x41",
	                                     "\x44",
	                                     "\x0e\x10",
	                                     "\x0e\x18",
	                                     "\x86\x02",
	                                     "\xc6",
	                                     "\x0d\x06",
	                                     "\x0a",
	                                     "\x0b",
	                                     "\x0a",
	                                     "\x02\x7f",
	                                     "\x0c\x07\x08",
	                                     "\x03\x01\x02",
	                                     "\x04\x01\x02\x03\x04",
	                                     "\x83\x81\x02",
	                                     "\x7f",
	                                     "\x0c\x0a",
	                                     "\x0f\x03\x76\x78\x06",
	                                     "\x10\x06\x02\x76\x70"};
	for (uint32_t index = 0; index < bytes;) {
		const char *next = likely[next_random(state) % (sizeof(likely) / sizeof(likely[0]))];
		for (; *next && index < bytes; next++) {
			unsigned long random = next_random(state);
			program[index++] = (random & 63) ? (uint8_t)*next : (uint8_t)(random >> 16);
		}
	}
}

static int run_one(unsigned long *state)
{
	uint32_t bytes = (uint32_t)(next_random(state) % BYTES_MAX);
	uint8_t *program = malloc(bytes ? bytes : 1);
	int64_t *rows = malloc(ROWS * sizeof(*rows));
	write_program(state, program, bytes);
	struct nfp_frame_start start = {.address = next_random(state) >> (next_random(state) % 64),
	                                .until = UINT64_MAX,
	                                .cfa_register = (int32_t)(next_random(state) % 18) - 1,
	                                .cfa_offset = 8};
	if (next_random(state) & 1)
		start.until = start.address + 64;
	int count = nfp_frame_rows(program, bytes, &start, rows);
	CHECK(count >= -1 && count <= NFP_FRAME_ROWS_MAX && count != 0);
	for (int row = 0; row < count; row++) {
		const int64_t *words = rows + row * NFP_FRAME_ROW_WORDS;
		CHECK(words[1] >= NFP_FRAME_DEREFERENCED && words[1] < 16 && words[1] != -1);
		CHECK(words[2] >= (words[1] < 0 ? -64 : 0));
		CHECK(row == 0 ? words[0] == (int64_t)start.address : words[0] > words[-NFP_FRAME_ROW_WORDS]);
		CHECK(row == 0 || (uint64_t)words[0] <= start.until || start.until < start.address);
	}
	free(program);
	free(rows);
	return count > 1;
}

int main(void)
{
	unsigned long state = 20260101;
	int usable = 0;
	for (int round = 0; round < ROUNDS; round++)
		usable += run_one(&state);
	CHECK(usable > ROUNDS / 20);
	printf("%d frame programs, %d with several rows\n", ROUNDS, usable);
	return 0;
}
