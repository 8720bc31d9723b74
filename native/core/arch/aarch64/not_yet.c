// SPDX-License-Identifier: Apache-2.0
// arm64 is not supported yet: what is done to a target fails with ENOSYS, and code is left to other means.
#include "arch/arch.h"
#include <errno.h>

const struct nfp_template nfp_templates[NFP_SHAPE_COUNT];

int nfp_registers_read(pid_t tid, struct nfp_registers *registers)
{
	(void)tid;
	*registers = (struct nfp_registers){.call = -1};
	return -ENOSYS;
}

int nfp_registers_write(pid_t tid, const struct nfp_registers *registers)
{
	(void)tid;
	(void)registers;
	return -ENOSYS;
}

int nfp_function_call(struct nfp_registers *registers, int memory, uint64_t function, uint64_t argument,
                      uint64_t stack_end, uint64_t return_to)
{
	(void)registers;
	(void)memory;
	(void)function;
	(void)argument;
	(void)stack_end;
	(void)return_to;
	return -ENOSYS;
}

int nfp_move_in_frames(int memory, uint64_t stack_pointer, const struct nfp_plan *plan)
{
	(void)memory;
	(void)stack_pointer;
	(void)plan;
	return -ENOSYS;
}

uint32_t nfp_field_code(const struct nfp_template_field *field, const struct nfp_trampoline *values)
{
	(void)field;
	(void)values;
	return 0;
}

void nfp_code_scan(struct nfp_code_scan *scan)
{
	for (; scan->done < scan->count; scan->done++) {
		struct nfp_code_function *function = scan->functions + scan->done;
		function->flags = function->events = function->rows = function->head = 0;
		function->trouble = NFP_CODE_UNKNOWN;
	}
}

int64_t nfp_code_targets(const uint8_t *code, uint64_t bytes, uint64_t address, uint64_t *targets)
{
	(void)code;
	(void)bytes;
	(void)address;
	(void)targets;
	return -1;
}
