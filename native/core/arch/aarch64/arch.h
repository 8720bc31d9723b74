// SPDX-License-Identifier: Apache-2.0
// arm64 is not supported yet: a thread's registers are neither read nor written, which refuses whatever is to be done to
// a target, and there is no template.
#ifndef NFPROBE_CORE_ARCH_AARCH64_H
#define NFPROBE_CORE_ARCH_AARCH64_H
#include <elf.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/user.h>

#define NFP_VECTOR_STATE NT_PRFPREG
#define NFP_VECTOR_STATE_BYTES 528

#define NFP_TRAP_BYTES 4
#define NFP_TRAP ((const uint8_t[NFP_TRAP_BYTES]){0x00, 0x00, 0x20, 0xd4}) // brk 0
#define NFP_SITE_BYTES_MIN 4
#define NFP_JUMP_BYTES 4 // b
#define NFP_CALL_BYTES 4
#define NFP_CALL_WAITS SYS_ppoll
#define NFP_RETURN_BYTES 4
#define NFP_RETURN ((const uint8_t[NFP_RETURN_BYTES]){0xc0, 0x03, 0x5f, 0xd6})
#define NFP_SKIP_BYTES 4

#define NFP_DWARF_FRAME 29
#define NFP_DWARF_RETURN 30
#define NFP_DWARF_SP 31
#define NFP_DWARF_GENERAL 32
#define NFP_DWARF_AT_ENTRY ((const uint8_t[]){0x0c, NFP_DWARF_SP, 0}) // DW_CFA_def_cfa

struct nfp_registers {
	struct user_regs_struct user;
	uint64_t base;
	int64_t call; // number of the system call, or negative
};

static inline uint64_t nfp_ticks_in_order(void)
{
	__asm__ volatile("isb" ::: "memory");
	return nfp_ticks();
}

static inline uint64_t nfp_program_counter(const struct nfp_registers *registers)
{
	return registers->user.pc;
}

static inline void nfp_program_counter_set(struct nfp_registers *registers, uint64_t address)
{
	registers->user.pc = address;
}

static inline uint64_t nfp_stack_pointer(const struct nfp_registers *registers)
{
	return registers->user.sp;
}

static inline uint64_t nfp_registers_base(const struct nfp_registers *registers)
{
	return registers->base;
}

static inline uint64_t nfp_trap_address(const struct nfp_registers *registers)
{
	return registers->user.pc;
}

static inline int64_t nfp_call_number(const struct nfp_registers *registers)
{
	return registers->call;
}

static inline int64_t nfp_call_result(const struct nfp_registers *registers)
{
	return (int64_t)registers->user.regs[0];
}

static inline void nfp_call_result_set(struct nfp_registers *registers, int64_t result)
{
	registers->user.regs[0] = (uint64_t)result;
}

static inline void nfp_call_forget(struct nfp_registers *registers)
{
	registers->call = -1;
}

static inline void nfp_call_again(struct nfp_registers *registers)
{
	registers->user.pc -= NFP_CALL_BYTES;
	nfp_call_forget(registers);
}

static inline void nfp_call_make(struct nfp_registers *registers, uint64_t address, uint64_t number,
                                 const uint64_t arguments[6])
{
	registers->user.pc = address;
	registers->user.regs[8] = number;
	memcpy(registers->user.regs, arguments, 6 * sizeof(*arguments));
	nfp_call_forget(registers);
}

static inline void nfp_skip_write(uint8_t *code, uint32_t distance)
{
	(void)distance;
	memset(code, 0, NFP_SKIP_BYTES); // an undefined instruction
}
#endif
