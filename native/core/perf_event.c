// SPDX-License-Identifier: Apache-2.0
#include "perf_event.h"
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

void nfp_event_set_flags(struct perf_event_attr *attributes, uint32_t flags)
{
	attributes->disabled = !!(flags & NFP_EVENT_DISABLED);
	attributes->pinned = !!(flags & NFP_EVENT_PINNED);
	attributes->exclude_user = !!(flags & NFP_EVENT_EXCLUDE_USER);
	attributes->exclude_kernel = !!(flags & NFP_EVENT_EXCLUDE_KERNEL);
	attributes->exclude_hv = !!(flags & NFP_EVENT_EXCLUDE_HV);
	attributes->freq = !!(flags & NFP_EVENT_FREQ);
	attributes->sample_id_all = !!(flags & NFP_EVENT_SAMPLE_ID_ALL);
	attributes->context_switch = !!(flags & NFP_EVENT_CONTEXT_SWITCH);
	attributes->use_clockid = !!(flags & NFP_EVENT_USE_CLOCKID);
	attributes->exclude_callchain_kernel = !!(flags & NFP_EVENT_NO_KERNEL_FRAMES);
	attributes->exclude_callchain_user = !!(flags & NFP_EVENT_NO_USER_FRAMES);
}

void nfp_event_set_precision(struct perf_event_attr *attributes, uint32_t precise_ip)
{
	attributes->precise_ip = precise_ip & 3;
}

int32_t nfp_event_open(struct perf_event_attr *attributes, int32_t tid, int32_t cpu, int32_t group)
{
	// What a kernel of an earlier version does not know is behind this and zero.
	attributes->size = PERF_ATTR_SIZE_VER5;
	long descriptor = syscall(SYS_perf_event_open, attributes, tid, cpu, group, PERF_FLAG_FD_CLOEXEC);
	return descriptor < 0 ? -errno : (int32_t)descriptor;
}
