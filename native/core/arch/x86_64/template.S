// SPDX-License-Identifier: Apache-2.0
// The trampolines, one template for each shape. trampoline.c copies a template into an arena, fills its
// fields and appends the displaced instructions of the function. Nothing here is executed in the monitor.
//
//   patch site: jmp T          T: entry probe
//                                 sub rsp, frame         in-stack call: the function body stays where it is,
//                                 call displaced         the real return address stays on the real stack
//                                 add rsp, frame
//                                 exit probe
//                                 ret
//                                 slow paths
//                       displaced: first instructions of the function; jmp back behind them
//
// That is the in-stack call; copied arguments differ in what lies between the probes. Of a relocated body the
// entry probe is one template (enter), and each way out another (exit), with the copied body between them.
// template_macros.inc has the probes themselves and the rules that they keep.
#include "template_macros.inc"

// ---- call: entry and exit of a function that reads no stack arguments -------------------------------------

	TEMPLATE call
	ROW call, 8
	ENTRY call, .Lcall_closed
	lea -8(%rsp), %rsp
	ROW call, 16
	call nfp_template_end_call
	lea 8(%rsp), %rsp
	ROW call, 8
	EXIT call
	ret
	ENTRY_SLOW call, 8
	EXIT_SLOW call
.Lcall_closed:
	mov -8(%rsp), %rcx
	TEMPLATE_END call

// ---- enter, mark, exit: the ends of a relocated body ------------------------------------------------------
// What is appended follows in the flow: the body behind the entry probe, the return or the jump out behind the
// exit probe. A mark is an entry whose end is not measured.

.macro ENTER name, kind
	TEMPLATE \name
	ROW \name, 8
	ENTRY \name, .Lclosed_\name, \kind
	jmp .Lend_\name
	ENTRY_SLOW \name, 8
.Lclosed_\name:
	mov -8(%rsp), %rcx
	TEMPLATE_END \name
.endm

	ENTER enter, NFP_ENTRY
	ENTER mark, NFP_MARK

	TEMPLATE exit
	ROW exit, 8
	EXIT exit
	jmp .Lend_exit
	EXIT_SLOW exit
	TEMPLATE_END exit

// ---- value: entry with a snippet that the user wrote ---------------------------------------------------------
// The snippet computes a number in rax from what the function was called with, and may use rcx, rdx and r11, too.
// What they held stands below rsp: the entry probe has saved all but r11 there. A call that was not recorded, or whose
// gate is closed, does not run it. trampoline.c fills the room and jumps from the snippet's end to the room's.

#define SNIPPET_ROOM 128

.macro CAPTURE name
	mov %r11, -32(%rsp)
	.skip SNIPPET_ROOM, 0xcc
	FIELD \name, FIELD_SNIPPET, SNIPPET_ROOM
	THREAD \name, %rcx
	TEST_GATE \name, %rcx
	jz .Lvalue_done_\name
.Lvalue_again_\name:
	RESERVE %rdx, %edx, .Lvalue_full_\name
	mov %rax, NFP_RECORD_VALUE(%rdx)
	COMMIT \name, %rdx, NFP_VALUE
	cmpq $0, NFP_THREAD_SHARES(%rcx)
	jne .Lvalue_shares_\name
.Lvalue_done_\name:
	mov -32(%rsp), %r11
.Lvalue_unrecorded_\name:
	RESTORE_THREE
.endm

.macro CAPTURE_SLOW name
	ENTRY_SLOW \name, 8, .Lvalue_unrecorded_\name
	WORD_SLOW \name, .Lvalue_full_\name, .Lvalue_again_\name, .Lvalue_done_\name
// The third argument is where the entry probe has saved it.
.Lvalue_shares_\name:
	ROW \name, 8
	lea -48(%rsp), %rsp
	ROW \name, 56
	mov 24(%rsp), %rdx
	mov $0, %eax
	FIELD \name, FIELD_PROGRAM, 4
	call *NFP_THREAD_SHARES(%rcx)
	lea 48(%rsp), %rsp
	ROW \name, 8
	jmp .Lvalue_done_\name
.endm

	TEMPLATE call_value
	ROW call_value, 8
	ENTRY call_value, .Lcall_value_closed
	CAPTURE call_value
.Lcall_value_go:
	lea -8(%rsp), %rsp
	ROW call_value, 16
	call nfp_template_end_call_value
	lea 8(%rsp), %rsp
	ROW call_value, 8
	EXIT call_value
	ret
	CAPTURE_SLOW call_value
	EXIT_SLOW call_value
.Lcall_value_closed:
	mov -8(%rsp), %rcx
	jmp .Lcall_value_go
	TEMPLATE_END call_value

	TEMPLATE enter_value
	ROW enter_value, 8
	ENTRY enter_value, .Lenter_value_closed
	CAPTURE enter_value
	jmp .Lend_enter_value
	CAPTURE_SLOW enter_value
.Lenter_value_closed:
	mov -8(%rsp), %rcx
	TEMPLATE_END enter_value

// ---- copy: as call, with the caller's stack arguments pushed again --------------------------------------------
// An even number of words, so that the stack is aligned where the function expects it. No register is needed.

.macro COPY name, words
	TEMPLATE \name
	ROW \name, 8
	ENTRY \name, .Lclosed_\name
	push %rbp
	ROW \name, 16, ROW_PUSHED
	mov %rsp, %rbp
	ROW \name, 16, ROW_FRAME
	.set .Lword, \words
	.rept \words
	.set .Lword, .Lword - 1
	pushq 16 + 8 * .Lword(%rbp)
	.endr
	.if \words
	mov (%rbp), %rbp // hand-written code takes arguments in any register
	ROW \name, 16+8*\words
	call nfp_template_end_\name
	lea 8 + 8 * \words(%rsp), %rsp
	.else // for functions to which rbp is a frame pointer: its chain stays whole, as perf follows it
	call nfp_template_end_\name
	leave
	.endif
	ROW \name, 8, ROW_LEFT
	EXIT \name
	ret
	ENTRY_SLOW \name, 8
	EXIT_SLOW \name
.Lclosed_\name:
	mov -8(%rsp), %rcx
	TEMPLATE_END \name
.endm

	COPY copy_0, 0
	COPY copy_2, 2
	COPY copy_4, 4
	COPY copy_8, 8
	COPY copy_16, 16
	COPY copy_32, 32
	COPY copy_64, 64

// ---- bare: the reference of benchmarks ----------------------------------------------------------------------
// What any probe of this kind costs at least: two time stamps, each stored once, never drained.

.macro BARE_STAMP
	mov %rax, -16(%rsp)
	mov %rdx, -24(%rsp)
	rdtsc
	shl $32, %rdx
	or %rax, %rdx
	mov %rdx, -40(%rsp)
	mov -24(%rsp), %rdx
	mov -16(%rsp), %rax
.endm

	TEMPLATE bare
	ROW bare, 8
	BARE_STAMP
	lea -8(%rsp), %rsp
	ROW bare, 16
	call nfp_template_end_bare
	lea 8(%rsp), %rsp
	ROW bare, 8
	BARE_STAMP
	ret
	TEMPLATE_END bare

	.section .note.GNU-stack, "", @progbits
