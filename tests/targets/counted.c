// SPDX-License-Identifier: Apache-2.0
// A processor with performance counters, made of a signal handler: rdpmc raises SIGSEGV where the kernel does not allow
// it, and the handler answers from counters of its own. The pages that the kernel would maintain are made here, too.
// Switches (other counters, other locks, or none for a while) happen at random before and after a reading, and in the
// middle of a call; each command writes to a file what was really counted in each call of work().
#define _GNU_SOURCE
#include "commands.h"
#include "one_packet.h"
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#define NOINLINE __attribute__((noinline, noclone, used))
enum { COUNTERS = 6, FIXED = 1 << 30, PROGRAMMABLE = 8, PAGE = 4096 };

struct page {
	uint32_t version, compat_version, lock, index;
};
struct truth {
	uint32_t amount;
	uint32_t switched; // between the readings, or nothing was counting
};

static struct page *pages[COUNTERS];
static uint64_t value[COUNTERS]; // of the hardware, whatever it was programmed with
static int place[COUNTERS]; // in the hardware
static int width = 48, chance; // switches in a thousand occasions
static unsigned long state = 88172645463325252;
static uint64_t switches, at_entry; // so far, and when the first reading of this call was made
static volatile int armed;
static uint64_t readings;
static long occasions, point = -1,
                       torn = -1; // so far; at which a switch happens; from which to the next it is under way

static unsigned long next_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

// Half of what the kernel does: the pages are not consistent until it is done.
static void begin_switch(int away)
{
	switches++;
	for (int i = 0; i < COUNTERS; i++) {
		pages[i]->lock++;
		value[i] = next_random();
		place[i] = (int)(next_random() % 3 == 0 ? FIXED + i : i);
		pages[i]->index = away ? 0 : (uint32_t)place[i] + 1;
	}
}

static void end_switch(void)
{
	for (int i = 0; i < COUNTERS; i++)
		pages[i]->lock++;
}

static void switch_all(void)
{
	begin_switch(next_random() % 4 == 0);
	end_switch();
}

static void maybe_switch(void)
{
	long occasion = armed ? occasions++ : -2;
	if (pages[0]->lock & 1)
		end_switch();
	if (occasion == point || occasion == torn)
		begin_switch(0);
	if (occasion == point)
		end_switch();
	int likely = pages[0]->index ? chance : 500;
	if (armed && chance && next_random() % 1000 < (unsigned long)likely)
		switch_all();
}

static uint64_t read_hardware(uint32_t index)
{
	for (int i = 0; i < COUNTERS; i++)
		if ((uint32_t)place[i] == index)
			return value[i] & (width == 64 ? ~0ull : (1ull << width) - 1);
	return 0xdeadbeef; // no counter: it has been given to others meanwhile
}

static void answer(int number, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	const uint8_t *code = (const uint8_t *)registers[REG_RIP];
	(void)info;
	if (code[0] != 0x0f || code[1] != 0x33) {
		signal(number, SIG_DFL);
		return;
	}
	readings++;
	maybe_switch();
	uint64_t found = read_hardware((uint32_t)registers[REG_RCX]);
	maybe_switch();
	registers[REG_RAX] = (uint32_t)found;
	registers[REG_RDX] = (greg_t)(found >> 32);
	registers[REG_RIP] += 2;
}

static void count(uint32_t amount)
{
	for (int i = 0; i < COUNTERS; i++)
		value[i] += (uint64_t)amount * (i + 1);
}

NOINLINE uint32_t inner(uint32_t amount)
{
	count(amount);
	return amount;
}

NOINLINE uint32_t work(uint32_t amount)
{
	count(amount);
	maybe_switch();
	inner(7);
	return amount;
}

// A receive function: returns one packet when the amount is odd.
NOINLINE uint32_t take(uint32_t amount, const void **burst, uint32_t most)
{
	count(amount);
	maybe_switch();
	inner(7);
	*burst = &packet;
	return amount % 2 && most;
}

static const char *run_work(long calls, int polls)
{
	static char said[32];
	struct truth *truth = calloc((size_t)calls, sizeof(*truth));
	FILE *file = fopen(getenv("TRUTH"), "wb");
	const void *burst[1];
	uint64_t sum = 0;
	armed = 1;
	for (long i = 0; i < calls; i++) {
		at_entry = switches;
		truth[i].amount = (uint32_t)(next_random() % 100000);
		sum += polls ? take(truth[i].amount, burst, 1) : work(truth[i].amount);
		truth[i].switched = switches != at_entry || pages[0]->index == 0;
	}
	armed = 0;
	if (pages[0]->lock & 1)
		end_switch();
	if (!file || fwrite(truth, sizeof(*truth), (size_t)calls, file) != (size_t)calls || fclose(file))
		return "no file";
	free(truth);
	snprintf(said, sizeof(said), "%lu", (unsigned long)sum);
	return said;
}

static const char *run_calls(long calls)
{
	return run_work(calls, 0);
}

static const char *run_polls(long calls)
{
	return run_work(calls, 1);
}

// The next run has one switch, at this occasion.
static const char *set_point(long number)
{
	occasions = 0;
	point = number;
	torn = -1;
	return "set";
}

static const char *set_torn(long number)
{
	set_point(-1);
	torn = number;
	return "set";
}

static const char *say_occasions(long number)
{
	static char said[32];
	snprintf(said, sizeof(said), "%ld", number + occasions);
	return said;
}

static const char *set_chance(long number)
{
	chance = (int)number;
	switch_all();
	while (!pages[0]->index)
		switch_all();
	return "set";
}

static const char *set_width(long number)
{
	width = (int)number;
	// Close before the end of the hardware's range.
	for (int i = 0; i < COUNTERS; i++)
		value[i] = (number == 64 ? ~0ull : (1ull << number) - 1) - 1000;
	return "set";
}

static const char *set_off(long number)
{
	pages[number]->index = 0;
	return "set";
}

static const char *say_where(long number)
{
	static char said[32];
	snprintf(said, sizeof(said), "%lx", (unsigned long)(number ? readings : (uintptr_t)pages));
	return said;
}

int main(void)
{
	static const struct command commands[] = {
	    {"work", run_calls},          {"poll", run_polls},  {"chance", set_chance}, {"off", set_off},
	    {"width", set_width},         {"where", say_where}, {"point", set_point},   {"torn", set_torn},
	    {"occasions", say_occasions}, {NULL, NULL}};
	struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};
	sigaction(SIGSEGV, &action, NULL);
	for (int i = 0; i < COUNTERS; i++) {
		pages[i] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		place[i] = i;
		pages[i]->index = (uint32_t)i + 1;
	}
	return obey(commands);
}
