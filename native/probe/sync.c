// SPDX-License-Identifier: Apache-2.0
// What changing code without a stop needs done inside the target: every CPU that runs it must see the code
// that was written (membarrier), and what it does with SIGTRAP must survive. Raw system calls only: functions of
// the C library may be the ones that change.
#include "library.h"
#include <errno.h>
#include <linux/membarrier.h>
#include <signal.h>
#include <sys/syscall.h>

#define MASK_BYTES 8

struct kernel_action { // of rt_sigaction
	uint64_t handler, flags, restorer, mask;
};

static struct kernel_action kept;

static long membarrier(long command)
{
	return nfp_syscall3(SYS_membarrier, command, 0, 0);
}

static long trap_action(const struct kernel_action *new, struct kernel_action *old)
{
	return nfp_syscall6(SYS_rt_sigaction, SIGTRAP, (long)new, (long)old, MASK_BYTES, 0, 0);
}

// The kernel takes the handler away when a thread meets a breakpoint with SIGTRAP blocked, as all signals are for
// moments of pthread_create; the rest of the action stays as it was.
static long mend_trap(void)
{
	struct kernel_action found;
	long error = trap_action(0, &found);
	if (error || kept.handler == 0 || found.handler != 0 || found.flags != kept.flags ||
	    found.restorer != kept.restorer || found.mask != kept.mask)
		return error;
	return trap_action(&kept, 0);
}

// The kernel forgets that SIGTRAP is ignored when a thread meets a breakpoint or is stepped, as the injection does.
static long ignore_trap(void)
{
	struct kernel_action found;
	long error = trap_action(0, &found);
	if (error || found.handler != 0)
		return error;
	found.handler = (uint64_t)(uintptr_t)SIG_IGN;
	return trap_action(&found, 0);
}

long nfp_sync(uint64_t what)
{
	switch (what) {
	case NFP_SYNC_REGISTER:
		return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE);
	case NFP_SYNC_CORES:
		return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
	case NFP_SYNC_KEEP_TRAP:
		return trap_action(0, &kept);
	case NFP_SYNC_MEND_TRAP:
		return mend_trap();
	case NFP_SYNC_IGNORE_TRAP:
		return ignore_trap();
	default:
		return -EINVAL;
	}
}
