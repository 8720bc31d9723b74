// SPDX-License-Identifier: Apache-2.0
// The thread word where the C library is glibc: initial-exec storage. glibc grants it to a library that is
// loaded later, from its surplus of static storage, and threads that are there already have it at once.
#include "library.h"

static __thread struct nfp_thread *thread_word __attribute__((tls_model("initial-exec"))) = &nfp_null_thread;

int64_t nfp_find_word(void)
{
	return (int64_t)((uintptr_t)&thread_word - nfp_thread_base());
}
