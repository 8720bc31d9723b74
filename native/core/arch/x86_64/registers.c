// SPDX-License-Identifier: Apache-2.0
#include "address_space.h"
#include "arch/arch.h"
#include <errno.h>
#include <sys/ptrace.h>

#define RED_ZONE_BYTES 128
#define DIRECTION_FLAG 0x400 // clear at each call

int nfp_registers_read(pid_t tid, struct nfp_registers *registers)
{
	return ptrace(PTRACE_GETREGS, tid, 0, &registers->user) == 0 ? 0 : -errno;
}

int nfp_registers_write(pid_t tid, const struct nfp_registers *registers)
{
	return ptrace(PTRACE_SETREGS, tid, 0, &registers->user) == 0 ? 0 : -errno;
}

int nfp_function_call(struct nfp_registers *registers, int memory, uint64_t function, uint64_t argument,
                      uint64_t stack_end, uint64_t return_to)
{
	registers->user.rsp = stack_end - RED_ZONE_BYTES - 8;
	registers->user.rip = function;
	registers->user.rdi = argument;
	registers->user.rax = 0;
	registers->user.eflags &= ~(uint64_t)DIRECTION_FLAG;
	nfp_call_forget(registers);
	return nfp_memory_write(memory, registers->user.rsp, &return_to, sizeof(return_to));
}
