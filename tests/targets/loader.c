// SPDX-License-Identifier: Apache-2.0
// Opens and closes the libraries that its arguments name: `open N` the Nth, `add N` one more, `close`, `run COUNT` its
// function, `storm COUNT` all of it over and over.
#include "commands.h"
#include <dlfcn.h>

#define NOINLINE __attribute__((noinline, noclone, used))

static char **libraries;
static int library_count;
static void *opened;
static long (*run)(long);

static NOINLINE long stay(long x) // is there from the start
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

static const char *run_open(long number)
{
	if (number < 1 || number >= library_count || opened)
		return "no such library";
	opened = dlopen(libraries[number], RTLD_LAZY);
	if (!opened)
		return dlerror();
	*(void **)&run = dlsym(opened, "plugin_run");
	static char answer[32];
	snprintf(answer, sizeof(answer), "%p", *(void **)&run);
	return answer;
}

// Beside the one that is open; never closed.
static const char *run_add(long number)
{
	if (number < 1 || number >= library_count || !dlopen(libraries[number], RTLD_LAZY))
		return "not opened";
	return "added";
}

static const char *run_close(long count)
{
	(void)count;
	if (!opened || dlclose(opened) != 0)
		return "not open";
	opened = NULL;
	return "closed";
}

static const char *run_run(long count)
{
	return opened && run(count) == count ? "right" : "wrong";
}

static const char *run_reopen(long number)
{
	run_close(0);
	return run_open(number);
}

static const char *run_storm(long count)
{
	for (long i = 0; i < count; i++) {
		run_open(1 + i % (library_count - 1));
		if (!opened || run(10) != 10)
			return "wrong";
		run_close(0);
	}
	return "right";
}

static const char *run_stay(long count)
{
	for (long i = 0; i < count; i++)
		if (stay(i) != i + 1)
			return "wrong";
	return "right";
}

int main(int argc, char **argv)
{
	static const struct command commands[] = {
	    {"open", run_open},   {"add", run_add}, {"close", run_close}, {"run", run_run}, {"reopen", run_reopen},
	    {"storm", run_storm}, {"stay", run_stay},   {NULL, NULL}};
	libraries = argv;
	library_count = argc;
	return obey(commands);
}
