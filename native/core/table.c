// SPDX-License-Identifier: Apache-2.0
// See table.h.
#include "table.h"
#include <sys/random.h>

void nfp_hash_init(struct nfp_hash *hash)
{
	static const uint64_t known[2] = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u};
	if (getrandom(hash->factors, sizeof(hash->factors), GRND_NONBLOCK) != sizeof(hash->factors))
		for (int i = 0; i < 2; i++) // the machine has only just started
			hash->factors[i] = known[i] ^ (uintptr_t)hash << 20;
	hash->factors[0] |= 1;
	hash->factors[1] |= 1;
}
