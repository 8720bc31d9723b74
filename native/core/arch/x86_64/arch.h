// SPDX-License-Identifier: Apache-2.0
// x86-64. One byte of an instruction is changed at once, whatever its address.
#ifndef NFPROBE_CORE_ARCH_X86_64_H
#define NFPROBE_CORE_ARCH_X86_64_H
#include <elf.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <x86intrin.h>

#define NFP_VECTOR_STATE NT_X86_XSTATE
#define NFP_VECTOR_STATE_BYTES 16384 // XSAVE area: about 11 KiB with AMX

#define NFP_TRAP_BYTES 1
#define NFP_TRAP ((const uint8_t[NFP_TRAP_BYTES]){0xcc}) // int3
#define NFP_SITE_BYTES_MIN 2 // jmp rel8
#define NFP_JUMP_BYTES 5 // jmp rel32
#define NFP_CALL_BYTES 2
#define NFP_CALL_WAITS SYS_pause
#define NFP_RETURN_BYTES 1
#define NFP_RETURN ((const uint8_t[NFP_RETURN_BYTES]){0xc3})
#define NFP_SKIP_BYTES 2

#define NFP_DWARF_FRAME 6 // rbp
#define NFP_DWARF_SP 7 // rsp
#define NFP_DWARF_RETURN 16
#define NFP_DWARF_GENERAL 16
// DW_CFA_def_cfa rsp, 8; DW_CFA_offset: the return address is at cfa - 8.
#define NFP_DWARF_AT_ENTRY ((const uint8_t[]){0x0c, NFP_DWARF_SP, 8, 0x80 | NFP_DWARF_RETURN, 1})

struct nfp_registers {
	struct user_regs_struct user;
};

static inline uint64_t nfp_ticks_in_order(void)
{
	_mm_lfence();
	uint64_t ticks = nfp_ticks();
	_mm_lfence();
	return ticks;
}

static inline uint64_t nfp_program_counter(const struct nfp_registers *registers)
{
	return registers->user.rip;
}

static inline void nfp_program_counter_set(struct nfp_registers *registers, uint64_t address)
{
	registers->user.rip = address;
}

static inline uint64_t nfp_stack_pointer(const struct nfp_registers *registers)
{
	return registers->user.rsp;
}

// System V ABI, AMD64, 3.4.6.
static inline uint64_t nfp_registers_base(const struct nfp_registers *registers)
{
	return registers->user.fs_base;
}

// Behind it.
static inline uint64_t nfp_trap_address(const struct nfp_registers *registers)
{
	return registers->user.rip - NFP_TRAP_BYTES;
}

static inline int64_t nfp_call_number(const struct nfp_registers *registers)
{
	return (int64_t)registers->user.orig_rax;
}

static inline int64_t nfp_call_result(const struct nfp_registers *registers)
{
	return (int64_t)registers->user.rax;
}

static inline void nfp_call_result_set(struct nfp_registers *registers, int64_t result)
{
	registers->user.rax = (uint64_t)result;
}

static inline void nfp_call_forget(struct nfp_registers *registers)
{
	registers->user.orig_rax = (uint64_t)-1;
}

static inline void nfp_call_again(struct nfp_registers *registers)
{
	registers->user.rip -= NFP_CALL_BYTES;
	registers->user.rax = registers->user.orig_rax;
	nfp_call_forget(registers);
}

static inline void nfp_call_make(struct nfp_registers *registers, uint64_t address, uint64_t number,
                                 const uint64_t arguments[6])
{
	registers->user.rip = address;
	registers->user.rax = number;
	registers->user.rdi = arguments[0];
	registers->user.rsi = arguments[1];
	registers->user.rdx = arguments[2];
	registers->user.r10 = arguments[3];
	registers->user.r8 = arguments[4];
	registers->user.r9 = arguments[5];
	nfp_call_forget(registers);
}

static inline void nfp_skip_write(uint8_t *code, uint32_t distance)
{
	code[0] = 0xeb; // jmp rel8
	code[1] = (uint8_t)distance;
}
#endif
