// SPDX-License-Identifier: Apache-2.0
// C++ exceptions and stack walks through probed functions. Each command checks and answers "right".
#include "commands.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <stdexcept>
#include <string>

#define NOINLINE __attribute__((noinline, noclone, used))
#define EXPECT(condition)                                                                                            \
	if (!(condition))                                                                                            \
	return "wrong: " #condition

static long destroyed;
struct counted {
	long weight;
	~counted() { destroyed += weight; }
};

extern "C" {
NOINLINE void throw_at(long depth)
{
	asm volatile("" : "+r"(depth));
	if (depth == 0)
		throw std::runtime_error("thrown");
	throw_at(depth - 1);
	asm volatile("");
}

NOINLINE void with_cleanup(long depth)
{
	counted guard{depth};
	throw_at(depth);
	asm volatile("" ::"r"(&guard) : "memory");
}

NOINLINE long catch_inside(long depth)
{
	try {
		with_cleanup(depth);
	} catch (const std::runtime_error &error) {
		return std::strlen(error.what());
	}
	return -1;
}

NOINLINE long around_catch(long depth)
{
	long length = catch_inside(depth);
	asm volatile("" : "+r"(length));
	return length;
}

// Its first five bytes hold a push and a call: both are displaced, and the exception passes through the copy.
void call_first(void);
void call_first_thrower(void)
{
	throw std::runtime_error("from behind a call");
}
asm(".text\n.globl call_first\n.type call_first, @function\ncall_first:\n.cfi_startproc\n"
    "push %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset %rbx, -16\n"
    "call call_first_change\n"
    "pop %rbx\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size call_first, . - call_first\n"
    ".globl call_first_change\n.type call_first_change, @function\ncall_first_change:\n.cfi_startproc\n"
    "sub $8, %rsp\n.cfi_def_cfa_offset 16\nmov $-1, %rbx\ncall call_first_thrower\nud2\n"
    ".cfi_endproc\n.size call_first_change, . - call_first_change\n");

NOINLINE long keep_rbx(long value)
{
	register long kept asm("rbx") = value;
	asm volatile("" : "+r"(kept));
	try {
		call_first();
	} catch (const std::runtime_error &) {
	}
	asm volatile("" : "+r"(kept));
	return kept;
}

NOINLINE long around_keep(long value)
{
	long kept = keep_rbx(value);
	asm volatile("" : "+r"(kept));
	return kept;
}

NOINLINE int walk(long depth, void **frames, int room)
{
	asm volatile("" : "+r"(depth));
	int found = depth == 0 ? backtrace(frames, room) : walk(depth - 1, frames, room);
	asm volatile("");
	return found;
}

NOINLINE void let_go(void)
{
	throw std::runtime_error("nobody catches this");
}
}

static const char *run_throws(long count)
{
	for (long i = 0; i < count; i++) {
		destroyed = 0;
		EXPECT(around_catch(i % 5 + 1) == 6);
		EXPECT(destroyed == i % 5 + 1);
	}
	return "right";
}

static const char *run_call_first(long count)
{
	for (long i = 0; i < count; i++)
		EXPECT(around_keep(i * 11 + 3) == i * 11 + 3);
	return "right";
}

// Names of the frames of this program, innermost first; what lies elsewhere is "?".
static const char *run_walk(long depth)
{
	static std::string answer;
	void *frames[64];
	int found = walk(depth, frames, 64);
	answer.clear();
	for (int i = 0; i < found; i++) {
		char *address = static_cast<char *>(frames[i]);
		char *start = reinterpret_cast<char *>(walk);
		char *own = reinterpret_cast<char *>(run_walk);
		bool after_walk = address > start && address < start + 512, after_own = address > own && address < own + 512;
		bool in_walk = after_walk && (!after_own || start > own);
		answer += in_walk ? "walk " : after_own ? "run " : "? ";
	}
	return answer.c_str();
}

static const char *run_let_go(long)
{
	let_go();
	return "not reached";
}

int main()
{
	static const struct command commands[] = {{"throws", run_throws},
						  {"call_first", run_call_first},
						  {"walk", run_walk},
						  {"let_go", run_let_go},
						  {nullptr, nullptr}};
	return obey(commands);
}
