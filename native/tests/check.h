// SPDX-License-Identifier: Apache-2.0
// One macro for the C tests: says which condition failed and ends the test program with status 1.
#ifndef NFPROBE_TESTS_CHECK_H
#define NFPROBE_TESTS_CHECK_H
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                     \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);            \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

// A small generator, so that a failure can be repeated from its seed.
static inline unsigned long next_random(unsigned long *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

// How much a random search does: the number in the program's first argument, or what it does without one.
static inline unsigned long searches(int count, char **arguments, unsigned long most)
{
	return count > 1 ? strtoul(arguments[1], NULL, 10) : most;
}
#endif
