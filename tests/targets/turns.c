// SPDX-License-Identifier: Apache-2.0
// An event loop: each turn calls begin_turn, then quick, and in every hundredth turn slow, which takes ten
// thousand times as long. `run` makes so many turns and answers how many were slow.
#include "commands.h"

#define NOINLINE __attribute__((noinline, noclone, used))
#define SLOW_EVERY 100
#define QUICK_STEPS 200
#define SLOW_STEPS (10000 * QUICK_STEPS)

static char answer[32];
static long turns;

static void spin(long steps)
{
	for (long i = 0; i < steps; i++)
		__asm__ volatile("" : "+r"(i));
}

static NOINLINE void begin_turn(void)
{
	turns++;
	spin(10);
}

static NOINLINE void quick(void)
{
	spin(QUICK_STEPS);
}

static NOINLINE void slow(void)
{
	spin(SLOW_STEPS);
}

static NOINLINE void work(long turn)
{
	quick();
	if (turn % SLOW_EVERY == SLOW_EVERY / 2)
		slow();
	__asm__ volatile("");
}

static const char *run(long count)
{
	long slow_turns = 0;
	for (long i = 0; i < count; i++) {
		begin_turn();
		work(i);
		slow_turns += i % SLOW_EVERY == SLOW_EVERY / 2;
	}
	begin_turn();
	snprintf(answer, sizeof(answer), "%ld", slow_turns);
	return answer;
}

static const struct command commands[] = {
    {"run", run},
    {NULL, NULL},
};

int main(void)
{
	return obey(commands);
}
