// SPDX-License-Identifier: Apache-2.0
// A processor that counts instructions and branches exactly: each instruction is single-stepped (the trap flag), and
// rdpmc, which the kernel does not allow here, is answered from what was stepped. `truth` steps the functions below
// while nothing is probed and says what each call of theirs executed, from its first instruction to its return.
#define _GNU_SOURCE
#pragma GCC target("general-regs-only")
#include "commands.h"
#include "one_packet.h"
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>

#define NOINLINE __attribute__((noinline, noclone, used))
enum { COUNTERS = 6, PAGE = 4096, TRAP_FLAG = 0x100, CALLS_MAX = 64, FUNCTIONS = 13, RECEIVING = 10 };

struct page {
	uint32_t version, compat_version, lock, index;
};
struct counts {
	uint64_t instructions, branches;
};
struct call {
	int function;
	uint64_t back, rsp; // return address, and where it stands
	struct counts start, whole, inner;
	int outer;
	int is_empty; // a receive function has returned nothing
};

static struct page *pages[COUNTERS];
static __thread struct counts now;
static __thread uint64_t next; // the instruction that the next trap is about
static struct call calls[CALLS_MAX];
static int call_count, innermost = -1, watching;

// ---- the functions ------------------------------------------------------------------------------------------

// A known loop: 2 * turns instructions and the return.
NOINLINE long loop(long turns)
{
	__asm__ volatile("1: sub $1, %0\n jnz 1b" : "+r"(turns) : : "cc");
	return turns;
}

NOINLINE long twice(long turns)
{
	return loop(turns) + loop(turns + 1) + turns;
}

NOINLINE long many(long a, long b, long c, long d, long e, long f, long g, long h)
{
	return a + loop(b) + c + d + e + f + g + h;
}

NOINLINE long early(long turns)
{
	if (turns % 2)
		return 1;
	return twice(turns) + 1;
}

NOINLINE long hand_on(long turns)
{
	__asm__ volatile("");
	return twice(turns + 1); // a tail jump
}

NOINLINE long recurse(long depth)
{
	long found = depth ? recurse(depth - 1) + 1 : loop(3);
	__asm__ volatile("");
	return found;
}

NOINLINE __attribute__((optimize("no-omit-frame-pointer"))) long framed(long turns)
{
	volatile long kept[4] = {turns, 2, 3, 4};
	return loop(kept[0]) + kept[1];
}

// Calls a function of another module.
NOINLINE long far(long turns)
{
	unsigned seed = (unsigned)turns;
	return rand_r(&seed) + loop(turns) + rand_r(&seed);
}

// Receive functions: one that calls another function, whether it returns something or not ...
NOINLINE uint16_t take(uint16_t port, const void **burst, uint16_t most)
{
	for (int i = 0; i < port && i < most; i++)
		burst[i] = &packet;
	return (uint16_t)(port + loop(port + 2));
}

// ... one that never returns anything ...
NOINLINE uint16_t take_idle(uint16_t port, const void **burst, uint16_t most)
{
	__asm__ volatile("" : : "r"(burst));
	return port == most;
}

// ... and one that polls others.
NOINLINE uint16_t take_all(uint16_t port, const void **burst, uint16_t most)
{
	uint16_t found = take_idle(port, burst, most);
	found += (uint16_t)loop(port);
	found += take_idle(port + 1, burst, most);
	for (int i = 0; i < port; i++)
		burst[i] = &packet;
	return found + port;
}

NOINLINE long around(long polls)
{
	const void *burst[8];
	long found = loop(3);
	for (long i = 0; i < polls; i++)
		found += take_idle(9, burst, 8) + take(0, burst, 8);
	return found;
}

static const struct {
	const char *name;
	void *function;
} functions[FUNCTIONS] = {{"loop", loop},        {"twice", twice},     {"many", many},
                          {"early", early},      {"hand_on", hand_on}, {"recurse", recurse},
                          {"framed", framed},    {"far", far},         {"rand_r", rand_r},
                          {"around", around},    {"take", take},       {"take_idle", take_idle},
                          {"take_all", take_all}};

// ---- the processor --------------------------------------------------------------------------------------------

static int is_branch(const uint8_t *code)
{
	while (*code == 0xf2 || *code == 0xf3 || *code == 0x3e || (*code & 0xf0) == 0x40)
		code++;
	if (code[0] == 0x0f)
		return (code[1] & 0xf0) == 0x80;
	if (code[0] == 0xff)
		return (code[1] >> 3 & 7) >= 2 && (code[1] >> 3 & 7) <= 5;
	return (code[0] & 0xf0) == 0x70 || code[0] == 0xe8 || code[0] == 0xe9 || code[0] == 0xeb ||
	       code[0] == 0xc3 || code[0] == 0xc2;
}

static struct counts minus(struct counts a, struct counts b)
{
	return (struct counts){a.instructions - b.instructions, a.branches - b.branches};
}

static void watch(uint64_t rip, uint64_t rsp, uint64_t rax)
{
	while (innermost >= 0 && calls[innermost].back == rip && calls[innermost].rsp + 8 == rsp) {
		struct call *call = &calls[innermost];
		call->whole = minus(now, call->start);
		call->is_empty = call->function >= RECEIVING && !(uint16_t)rax;
		innermost = call->outer;
		if (innermost >= 0) { // no record tells an empty poll from the call around it
			struct counts inner = call->is_empty ? call->inner : call->whole;
			calls[innermost].inner.instructions += inner.instructions;
			calls[innermost].inner.branches += inner.branches;
		}
	}
	for (int i = 0; i < FUNCTIONS; i++)
		if (rip == (uint64_t)functions[i].function && call_count < CALLS_MAX) {
			calls[call_count] = (struct call){.function = i,
			                                  .back = *(const uint64_t *)rsp,
			                                  .rsp = rsp,
			                                  .start = now,
			                                  .outer = innermost};
			innermost = call_count++;
		}
}

static void step(int number, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	uint64_t rip = (uint64_t)registers[REG_RIP];
	(void)number, (void)info;
	if (next && rip != next) { // else one round of a repeated instruction
		now.instructions++;
		now.branches += (uint64_t)is_branch((const uint8_t *)next);
	}
	next = rip;
	if (watching)
		watch(rip, (uint64_t)registers[REG_RSP], (uint64_t)registers[REG_RAX]);
}

static void answer(int number, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	const uint8_t *code = (const uint8_t *)registers[REG_RIP];
	(void)info;
	if (code[0] != 0x0f || code[1] != 0x33 || registers[REG_RCX] >= COUNTERS) {
		signal(number, SIG_DFL);
		return;
	}
	uint64_t found = registers[REG_RCX] % 2 ? now.branches : now.instructions;
	registers[REG_RAX] = (uint32_t)found;
	registers[REG_RDX] = (greg_t)(found >> 32);
	registers[REG_RIP] += 2;
	registers[REG_EFL] |= TRAP_FLAG; // from the first reading on
	now.instructions++;
	next = (uint64_t)registers[REG_RIP];
}

static inline __attribute__((always_inline)) void set_trap_flag(uint64_t flag)
{
	__asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n orq %0, (%%rsp)\n"
	                 "popfq\n lea 128(%%rsp), %%rsp"
	                 :
	                 : "r"(flag)
	                 : "memory", "cc");
}

// Called by the helper thread, too, as functions are that do nothing: it blocks all signals, and is stepped like the
// others then. Ends stepping.
NOINLINE __attribute__((no_caller_saved_registers)) void be_steppable(void)
{
	uint64_t both = 1ull << (SIGSEGV - 1) | 1ull << (SIGTRAP - 1);
	long result = SYS_rt_sigprocmask;
	register long bytes __asm__("r10") = sizeof(both);
	set_trap_flag(0);
	next = 0;
	__asm__ volatile("syscall"
	                 : "+a"(result)
	                 : "D"(SIG_UNBLOCK), "S"(&both), "d"(0), "r"(bytes)
	                 : "rcx", "r11", "memory");
}

// ---- commands ---------------------------------------------------------------------------------------------

static const char *run_all(long rounds)
{
	volatile long found = 0;
	for (long i = 0; i < rounds; i++) {
		found += loop(20) + framed(5) + far(1) + recurse(1) + hand_on(2);
		found += many(1, 2, 3, 4, 5, 6, 7, 8) + early(1) + early(2);
	}
	be_steppable();
	return "done";
}

static const char *run_polls(long rounds)
{
	const void *burst[8];
	volatile long found = 0;
	for (long i = 0; i < rounds; i++) {
		for (uint16_t port = 0; port < 3; port++)
			found += take(port, burst, 8) + loop(port + 4);
		found += around(1) + take_all(2, burst, 8) + loop(1) + around(0);
	}
	be_steppable();
	return "done";
}

// The instructions of so many empty polls, and of the loop around them.
static const char *step_polls(long polls)
{
	static char said[32];
	const void *burst[8];
	struct counts before = now;
	set_trap_flag(TRAP_FLAG);
	for (long i = 0; i < polls; i++)
		take_idle(9, burst, 8);
	be_steppable();
	snprintf(said, sizeof(said), "%lu", now.instructions - before.instructions);
	return said;
}

static const char *find_truth(const char *(*run)(long rounds))
{
	static char said[CALLS_MAX * 64];
	size_t used = 0;
	call_count = 0;
	watching = 1;
	set_trap_flag(TRAP_FLAG);
	run(1);
	watching = 0;
	for (int i = 0; i < call_count; i++) {
		if (calls[i].is_empty)
			continue;
		struct counts self = minus(calls[i].whole, calls[i].inner);
		used += (size_t)snprintf(said + used, sizeof(said) - used, "%s:%lu,%lu,%lu,%lu ",
		                         functions[calls[i].function].name, calls[i].whole.instructions,
		                         calls[i].whole.branches, self.instructions, self.branches);
	}
	return said;
}

static const char *find_truth_of_all(long number)
{
	(void)number;
	return find_truth(run_all);
}

static const char *find_truth_of_polls(long number)
{
	(void)number;
	return find_truth(run_polls);
}

static const char *say_where(long number)
{
	static char said[32];
	snprintf(said, sizeof(said), "%lx",
	         (unsigned long)(number ? (uintptr_t)be_steppable : (uintptr_t)pages));
	return said;
}

int main(void)
{
	static const struct command commands[] = {{"run", run_all},
	                                          {"truth", find_truth_of_all},
	                                          {"where", say_where},
	                                          {"poll", run_polls},
	                                          {"truth_of_polls", find_truth_of_polls},
	                                          {"steps", step_polls},
	                                          {NULL, NULL}};
	struct sigaction action = {.sa_flags = SA_SIGINFO};
	action.sa_sigaction = answer;
	sigaction(SIGSEGV, &action, NULL);
	action.sa_sigaction = step;
	sigaction(SIGTRAP, &action, NULL);
	for (int i = 0; i < COUNTERS; i++) {
		pages[i] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		*pages[i] = (struct page){.lock = 2, .index = (uint32_t)i + 1};
	}
	return obey(commands);
}
