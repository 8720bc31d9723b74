// SPDX-License-Identifier: Apache-2.0
// arm64 is not supported yet: musl's storage lies above the thread base there.
#include "library.h"

int64_t nfp_find_word(void)
{
	return 0; // no thread has a word
}
