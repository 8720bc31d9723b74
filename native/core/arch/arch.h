// SPDX-License-Identifier: Apache-2.0
// What the monitor's core needs of a processor. Each has a folder here: arch.h, with what is declared below as `static
// inline`, the structure and constants
//   struct nfp_registers       the general registers of a stopped thread
//   NFP_VECTOR_STATE, NFP_VECTOR_STATE_BYTES   all its other ones: their set for PTRACE_GETREGSET, and room for it
//   NFP_TRAP_BYTES, NFP_TRAP   a breakpoint. As many bytes of code are changed at once, so that no CPU sees half of them
//   NFP_SITE_BYTES_MIN         of the instructions that a jump to an island displaces
//   NFP_JUMP_BYTES             of the jump to a trampoline
//   NFP_CALL_BYTES             of the instruction that makes a system call
//   NFP_CALL_WAITS             a system call that only a signal ends, with all arguments 0
//   NFP_RETURN_BYTES, NFP_RETURN   code of a function that only returns
//   NFP_SKIP_BYTES             of the jump that nfp_skip_write writes
//   NFP_DWARF_SP, NFP_DWARF_FRAME, NFP_DWARF_RETURN, NFP_DWARF_GENERAL   DWARF numbers: of stack and frame pointer, of the
//                              return address, and how many general registers there are
//   NFP_DWARF_AT_ENTRY         the unwind rule at the first instruction of a function
// and the other functions, with those of codescan.h; and the templates. Code is changed as live.h says: a breakpoint over
// the first bytes, the others, the first ones, with a membarrier between, which serialises all CPUs.
#ifndef NFPROBE_CORE_ARCH_H
#define NFPROBE_CORE_ARCH_H
#include "abi/arch/arch.h"
#include "codescan.h"
#include "trampoline.h"
#include <stdint.h>
#include <sys/types.h>

struct nfp_plan;
struct nfp_registers;

// ---- the clock -----------------------------------------------------------------------------------------------

// nfp_ticks between the instructions around it.
static inline uint64_t nfp_ticks_in_order(void);

// ---- registers of a stopped thread ---------------------------------------------------------------------------

// Both return 0 or -errno.
int nfp_registers_read(pid_t tid, struct nfp_registers *registers);
int nfp_registers_write(pid_t tid, const struct nfp_registers *registers);

static inline uint64_t nfp_program_counter(const struct nfp_registers *registers);
static inline void nfp_program_counter_set(struct nfp_registers *registers, uint64_t address);
static inline uint64_t nfp_stack_pointer(const struct nfp_registers *registers);
// What nfp_thread_base is in that thread; 0: it has none yet.
static inline uint64_t nfp_registers_base(const struct nfp_registers *registers);
// Where the breakpoint is that the thread has executed, if it has executed one.
static inline uint64_t nfp_trap_address(const struct nfp_registers *registers);

// The number of the system call that the thread is in, or negative; and its result so far.
static inline int64_t nfp_call_number(const struct nfp_registers *registers);
static inline int64_t nfp_call_result(const struct nfp_registers *registers);
static inline void nfp_call_result_set(struct nfp_registers *registers, int64_t result);
// The thread is in none: the kernel makes none again when it goes on.
static inline void nfp_call_forget(struct nfp_registers *registers);
// The one at whose entry the thread stands, and which was skipped, is made when it goes on.
static inline void nfp_call_again(struct nfp_registers *registers);
// One is made when it goes on: by the instruction at `address`.
static inline void nfp_call_make(struct nfp_registers *registers, uint64_t address, uint64_t number,
                                 const uint64_t arguments[6]);

// The thread calls a function, of one argument, when it goes on: on the stack that ends at `stack_end`, and it returns to
// `return_to`. Returns 0 or -errno.
int nfp_function_call(struct nfp_registers *registers, int memory, uint64_t function, uint64_t argument,
                      uint64_t stack_end, uint64_t return_to);

// A thread that runs a signal handler has the program counter to which it will return on its stack. Moves those in the
// signal frames above `stack_pointer`. Returns how many, or -errno.
int nfp_move_in_frames(int memory, uint64_t stack_pointer, const struct nfp_plan *plan);

// ---- trampolines ---------------------------------------------------------------------------------------------

extern const struct nfp_template nfp_templates[NFP_SHAPE_COUNT];
// The value of a field that is a part of an instruction: NFP_FIELD_WHEN, NFP_FIELD_ALWAYS or NFP_FIELD_QUEUE.
uint32_t nfp_field_code(const struct nfp_template_field *field, const struct nfp_trampoline *values);
// Writes a jump over the bytes behind it.
static inline void nfp_skip_write(uint8_t *code, uint32_t distance);

#if defined(__x86_64__)
#include "x86_64/arch.h"
#elif defined(__aarch64__)
#include "aarch64/arch.h"
#endif
#endif
