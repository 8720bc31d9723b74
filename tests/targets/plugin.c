// SPDX-License-Identifier: Apache-2.0
// A library that loader.c opens and closes. It calls functions of its own and, through its GOT, one of libz.
#ifndef FACTOR
#define FACTOR 3
#endif

#define NOINLINE __attribute__((noinline, noclone, used))

unsigned long crc32(unsigned long, const unsigned char *, unsigned);

static NOINLINE long plugin_step(long x)
{
	__asm__ volatile("" : "+r"(x));
	return x * FACTOR;
}

// What the program calls, by the pointer that dlsym gives: steps with the right result, or -1.
long plugin_run(long count)
{
	for (long i = 0; i < count; i++) {
		if (plugin_step(i) != i * FACTOR)
			return -1;
		if (crc32(0, (const unsigned char *)"123456789", 9) != 0xcbf43926)
			return -1;
	}
	return count;
}
