// SPDX-License-Identifier: Apache-2.0
// The thread word where the C library is musl. musl refuses initial-exec storage in a library that is loaded
// later, but gives every thread that is made after the load a static copy of the library's storage, below its
// thread base, at one distance for all:
//
//   thread made later:    | dtv | alignment | our word | storage of earlier modules | thread base
//   thread made earlier:        | dtv | alignment      | storage of earlier modules | thread base
//
// In a thread made earlier the word falls into what musl leaves unused for alignment, at least 16 bytes of
// zeros. The monitor looks before the load whether that is so for every thread, and afterwards stores the
// address of nfp_null_thread there (otel_nfprobe/target/musl.py); trampolines do not exist before that.
#include "library.h"

#define STATIC_BYTES_MAX (128 << 10) // less than the helper's stack, which is what lies below

// Nothing may refer to it by name: that takes a relocation which musl refuses, or a call which it does not have.
static __thread struct nfp_thread *thread_word __attribute__((used)) = &nfp_null_thread;

// fs:8 is the table of the thread's modules (dtv, of the ABI): their number, then where their storage is.
int64_t nfp_find_word(void)
{
	uintptr_t base = nfp_thread_base();
	const uintptr_t *modules = (const uintptr_t *)((const uintptr_t *)base)[1];
	if ((uintptr_t)modules >= base || base - (uintptr_t)modules > STATIC_BYTES_MAX)
		return 0; // moved to a longer table when the library was loaded: an earlier thread
	for (uintptr_t module = modules[0]; module > 0; module--) {
		uintptr_t storage = modules[module];
		if (storage > (uintptr_t)modules && storage < base && storage % 8 == 0 &&
		    *(struct nfp_thread **)storage == &nfp_null_thread)
			return (int64_t)(storage - base);
	}
	return 0;
}
