// SPDX-License-Identifier: Apache-2.0
// Maps rings into the target, each at both places where its laps are written (ring.h). Called by helper.c and, for the first
// record of a thread without a ring, by thread.c: raw system calls only.
#include "library.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define PLACES_APART (2 * NFP_RING_LAPS_APART)
#define PLACES_TRIED 8192 // 32 TiB of a target's 128
#define GUARD_BYTES                                                                                          \
	65536 // behind a lap, of nobody else: memory for what signal handlers in one another may write too much
#define FIXED (MAP_FIXED_NOREPLACE | MAP_NORESERVE)

static int is_failure(long address)
{
	return address < 0 && address > -4096;
}

static void unmap(uint64_t address)
{
	nfp_syscall3(SYS_munmap, (long)address, (long)nfp_library.header->ring_bytes + GUARD_BYTES, 0);
}

// Maps the ring at `address`, where nothing may be yet. Returns 0 or -errno.
static long map_at(uint64_t address, uint32_t index)
{
	const struct nfp_session_header *header = nfp_library.header;
	long got = nfp_syscall6(SYS_mmap, (long)address, (long)header->ring_bytes + GUARD_BYTES,
	                        PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | FIXED, -1, 0);
	if (is_failure(got))
		return got;
	if ((uint64_t)got != address) // a kernel before 4.17, where the address is a wish
		return unmap((uint64_t)got), -EEXIST;
	got = nfp_syscall6(SYS_mmap, (long)address, (long)header->ring_bytes, PROT_READ | PROT_WRITE,
	                   MAP_SHARED | MAP_FIXED, nfp_library.session_fd,
	                   (long)(NFP_RING_OFFSET + index * header->ring_stride));
	if (is_failure(got))
		return unmap(address), got;
	return 0;
}

static long map_both(uint64_t address, uint32_t index)
{
	long result = map_at(address, index);
	if (result)
		return result;
	uint64_t odd_laps = address + NFP_RING_LAPS_APART;
	result = map_at(odd_laps, index);
	if (result)
		unmap(address);
	else // the same bytes are in a core dump once already
		nfp_syscall3(SYS_madvise, (long)odd_laps, (long)nfp_library.header->ring_bytes + GUARD_BYTES,
		             MADV_DONTDUMP);
	return result;
}

long nfp_ring_map(uint32_t index)
{
	static uint64_t
	    lowest; // of the places in use: the next one is below it. Several threads may change it at once
	if (nfp_library.rings[index])
		return 0;
	uint64_t near = __atomic_load_n(&lowest, __ATOMIC_RELAXED);
	if (!near)
		near = (uint64_t)(uintptr_t)nfp_library.header;
	uint64_t place = (near & -PLACES_APART) + NFP_RING_PLACE;
	long result = -ENOMEM;
	for (uint32_t i = 0; i < PLACES_TRIED && place > 2 * PLACES_APART; i++) {
		place -= PLACES_APART;
		result = map_both(place, index);
		if (result == 0) {
			__atomic_store_n(&lowest, place, __ATOMIC_RELAXED);
			nfp_library.rings[index] = place;
		}
		if (result != -EEXIST)
			return result;
	}
	return -ENOMEM;
}
