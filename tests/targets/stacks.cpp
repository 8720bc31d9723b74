// SPDX-License-Identifier: Apache-2.0
// Stack walks and unwinding through the chain of deep.c, which calls back into the functions work_* here. Each
// command checks and answers "right", or tells the stack that it has walked.
#include "commands.h"
#include <atomic>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <execinfo.h>
#include <poll.h>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <unwind.h>
#include <vector>
#ifdef LIBUNWIND
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#endif

#define KEPT __attribute__((noinline, noclone, used, visibility("default")))
#define EXPECT(condition)                                                                                            \
	if (!(condition))                                                                                            \
	return "wrong: " #condition
#define FRAMES_MAX 64

typedef long work_function(long value);
extern "C" long deep_a(work_function *work, long value);

static long through_chain(long work, long value)
{
	return work + 1 + (1 + 2 + 3 + 4 + 5 * 16 + 6 * 256) + value * (3 + 5 + 7);
}

static thread_local long destroyed;
struct counted {
	long weight;
	~counted() { destroyed += weight; }
};

static std::string walked;

// Names of frames, innermost first, without the walker's own; "?" where no loaded file has the address.
static void name_frames(void *const *frames, int count)
{
	walked.clear();
	for (int i = 0; i < count; i++) {
		Dl_info info;
		char *inside = static_cast<char *>(frames[i]) - 1;
		bool known = dladdr(inside, &info) != 0;
		walked += !known ? "?" : info.dli_sname ? info.dli_sname : "-";
		walked += ' ';
	}
}

extern "C" {
KEPT long work_walk(long value)
{
	void *frames[FRAMES_MAX];
	name_frames(frames, backtrace(frames, FRAMES_MAX));
	return value;
}

#ifdef LIBUNWIND
KEPT long work_step(long value)
{
	void *frames[FRAMES_MAX];
	int count = 0;
	unw_context_t context;
	unw_cursor_t cursor;
	unw_getcontext(&context);
	unw_init_local(&cursor, &context);
	do {
		unw_word_t address;
		unw_get_reg(&cursor, UNW_REG_IP, &address);
		frames[count++] = reinterpret_cast<void *>(address);
	} while (count < FRAMES_MAX && unw_step(&cursor) > 0);
	name_frames(frames, count);
	return value;
}

KEPT long work_trace(long value) // the fast way, which keeps what it has learned
{
	void *frames[FRAMES_MAX];
	name_frames(frames, unw_backtrace(frames, FRAMES_MAX));
	return value;
}
#endif

KEPT long work_throw(long value)
{
	asm volatile("" : "+r"(value));
	throw std::runtime_error(std::to_string(value));
}

KEPT long work_wait(long value)
{
	char line[64];
	puts("inside");
	return fgets(line, sizeof(line), stdin) ? value : -1;
}

// Busy until the next line comes.
KEPT long work_spin(long value)
{
	static volatile long turns;
	struct pollfd input = {STDIN_FILENO, POLLIN, 0};
	char line[64];
	puts("inside");
	while (poll(&input, 1, 0) == 0)
		for (int i = 0; i < 1000000; i++)
			turns++;
	return fgets(line, sizeof(line), stdin) ? value : -1;
}

static std::atomic<long> asleep;
KEPT long work_sleep(long value)
{
	asleep++;
	for (;;)
		pause();
	return value;
}

// ---- forced unwinding, as pthread_exit does it -----------------------------------------------------------------

static jmp_buf landing;
static long forced_frames;
static _Unwind_Word landing_frame;

static _Unwind_Reason_Code stop_there(int, _Unwind_Action actions, _Unwind_Exception_Class, _Unwind_Exception *,
				      _Unwind_Context *context, void *)
{
	forced_frames++;
	if (actions & _UA_END_OF_STACK || _Unwind_GetCFA(context) > landing_frame)
		longjmp(landing, 1);
	return _URC_NO_REASON;
}

KEPT long work_force(long value)
{
	static _Unwind_Exception forced;
	memset(&forced, 0, sizeof(forced));
	_Unwind_ForcedUnwind(&forced, reinterpret_cast<_Unwind_Stop_Fn>(stop_there), nullptr);
	return value;
}

KEPT long with_cleanup(work_function *work, long value)
{
	counted guard{value};
	long result = deep_a(work, value);
	asm volatile("" ::"r"(&guard) : "memory");
	return result;
}

KEPT long catch_here(long value)
{
	try {
		with_cleanup(work_throw, value);
	} catch (const std::runtime_error &error) {
		return std::atol(error.what());
	}
	return -1;
}
}

static const char *run_walk(long) { return deep_a(work_walk, 1) == through_chain(1, 1) ? walked.c_str() : "wrong"; }
#ifdef LIBUNWIND
static const char *run_step(long) { return deep_a(work_step, 1) == through_chain(1, 1) ? walked.c_str() : "wrong"; }
static const char *run_trace(long) { return deep_a(work_trace, 1) == through_chain(1, 1) ? walked.c_str() : "wrong"; }
#endif
static const char *run_wait(long) { return deep_a(work_wait, 5) == through_chain(5, 5) ? "right" : "wrong"; }

static const char *run_spin(long) { return deep_a(work_spin, 5) == through_chain(5, 5) ? "right" : "wrong"; }

static const char *run_throws(long count)
{
	for (long i = 1; i <= count; i++) {
		destroyed = 0;
		EXPECT(catch_here(i) == i);
		EXPECT(destroyed == i);
	}
	return "right";
}

// Threads that throw at the same time, and an exception that crosses from thread to thread.
static const char *run_threads(long count)
{
	std::vector<std::thread> threads;
	std::vector<std::exception_ptr> ends(4);
	std::atomic<long> wrong{0};
	for (size_t t = 0; t < ends.size(); t++)
		threads.emplace_back([t, count, &ends, &wrong] {
			for (long i = 1; i <= count; i++)
				wrong += catch_here(i) != i;
			try {
				with_cleanup(work_throw, 1000 + t);
			} catch (...) {
				ends[t] = std::current_exception();
			}
		});
	for (auto &thread : threads)
		thread.join();
	EXPECT(wrong == 0);
	for (size_t t = 0; t < ends.size(); t++)
		try {
			std::rethrow_exception(ends[t]);
		} catch (const std::runtime_error &error) {
			EXPECT(std::atol(error.what()) == long(1000 + t));
		}
	return "right";
}

static void *sleep_deep(void *)
{
	with_cleanup(work_sleep, 7);
	return nullptr;
}

static const char *run_cancels(long count)
{
	for (long i = 0; i < count; i++) {
		pthread_t thread;
		void *result = nullptr;
		long before = asleep;
		EXPECT(pthread_create(&thread, nullptr, sleep_deep, nullptr) == 0);
		while (asleep == before)
			sched_yield();
		EXPECT(pthread_cancel(thread) == 0);
		EXPECT(pthread_join(thread, &result) == 0);
		EXPECT(result == PTHREAD_CANCELED);
	}
	return "right";
}

static const char *run_forces(long count)
{
	for (volatile long i = 0; i < count; i++) {
		destroyed = forced_frames = 0;
		landing_frame = reinterpret_cast<_Unwind_Word>(__builtin_frame_address(0));
		if (setjmp(landing) == 0)
			with_cleanup(work_force, 9);
		EXPECT(destroyed == 9);
		EXPECT(forced_frames >= 3);
	}
	return "right";
}

static const char *run_uncaught(long value)
{
	deep_a(work_throw, value);
	return "not reached";
}

int main()
{
	static const struct command commands[] = {
	    {"walk", run_walk},	      {"wait", run_wait}, {"spin", run_spin},     {"throws", run_throws},
	    {"threads", run_threads}, {"cancels", run_cancels}, {"forces", run_forces},
	    {"uncaught", run_uncaught},
#ifdef LIBUNWIND
	    {"step", run_step},	      {"trace", run_trace},
#endif
	    {nullptr, nullptr}};
	return obey(commands);
}
