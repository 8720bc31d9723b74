// SPDX-License-Identifier: Apache-2.0
// A function whose instructions are known: a loop of two, 50,000 times.
#include "commands.h"

#define NOINLINE __attribute__((noinline, noclone, used))

NOINLINE long step(long turns)
{
	__asm__ volatile("1: sub $1, %0\n jnz 1b" : "+r"(turns) : : "cc");
	return turns;
}

static const char *run_steps(long count)
{
	for (long i = 0; i < count; i++)
		step(50000);
	return "done";
}

int main(void)
{
	static const struct command commands[] = {{"steps", run_steps}, {NULL, NULL}};
	return obey(commands);
}
