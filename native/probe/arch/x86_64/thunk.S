// SPDX-License-Identifier: Apache-2.0
// Between a template and C: saves the caller-saved general registers that the template has not saved.
// The C side is compiled for general registers only, so vector and x87 state is never touched.
#include "abi/session.h"

	.text

// Saves what a call of C may change, but for rax and rcx, and aligns the stack, whose pointer is kept in rbp meanwhile.
.macro SAVE_EIGHT
	push %rdx
	push %rsi
	push %rdi
	push %r8
	push %r9
	push %r10
	push %r11
	push %rbp
	mov %rsp, %rbp
	and $-16, %rsp
.endm

.macro RESTORE_EIGHT
	mov %rbp, %rsp
	pop %rbp
	pop %r11
	pop %r10
	pop %r9
	pop %r8
	pop %rdi
	pop %rsi
	pop %rdx
.endm

// In: rcx thread block, eax loss class. Out: rcx thread block or 0. Keeps everything but rax and rcx.
	.p2align 4
	.globl nfp_slow_thunk
	.hidden nfp_slow_thunk
nfp_slow_thunk:
	endbr64
	SAVE_EIGHT
	mov %rcx, %rdi
	mov %eax, %esi
	call nfp_thread_slow
	mov %rax, %rcx
	RESTORE_EIGHT
	ret

// The same for threads with counters, called before every record of a template. The function's rsp stands eight words
// above what is pushed: the return address here and the 48 bytes that templates skip.
	.p2align 4
	.globl nfp_counted_thunk
	.hidden nfp_counted_thunk
nfp_counted_thunk:
	endbr64
	SAVE_EIGHT
	lea 120(%rbp), %edx
	mov %rcx, %rdi
	mov %eax, %esi
	call nfp_counted_slow
	mov %rax, %rcx
	RESTORE_EIGHT
	ret

// Behind the value of a call while a turn has several batches. In: rcx thread block, eax function and program, rdx the call's
// third argument. The function's rsp stands where nfp_counted_thunk says. Keeps everything but rax and rcx.
	.p2align 4
	.globl nfp_shares_thunk
	.hidden nfp_shares_thunk
nfp_shares_thunk:
	endbr64
	SAVE_EIGHT
	mov %rcx, %rdi
	mov %eax, %esi
	lea 120(%rbp), %ecx
	call nfp_node_shares
	RESTORE_EIGHT
	ret

// In: r11 thread block, rax frame, rdx exit time, ecx function and program. The frame holds the rest.
// Five words keep the stack aligned where the function was called as the ABI says. Where it was not, nothing breaks: C of
// general registers alone asks for no alignment.
.macro PACKET_THUNK name, function
	.p2align 4
	.globl \name
	.hidden \name
\name:
	endbr64
	push %rsi
	push %rdi
	push %r8
	push %r9
	push %r10
	mov %r11, %rdi
	mov %rax, %rsi
	movzbl NFP_THREAD_TIMED_STEP(%r11), %r8d
	subw %r8w, NFP_THREAD_UNTIL_TIMED(%r11)
	jc 1f
	call \function
0:
	pop %r10
	pop %r9
	pop %r8
	pop %rdi
	pop %rsi
	ret
1:
	lea \function(%rip), %r8
	call nfp_timed
	jmp 0b
.endm

	PACKET_THUNK nfp_receive_exit_thunk, nfp_receive_exit
	PACKET_THUNK nfp_counted_entry_thunk, nfp_counted_entry
	PACKET_THUNK nfp_counted_exit_thunk, nfp_counted_exit
	PACKET_THUNK nfp_packets_entry_thunk, nfp_packets_entry
	PACKET_THUNK nfp_packets_exit_thunk, nfp_packets_exit
	PACKET_THUNK nfp_ending_receive_exit_thunk, nfp_ending_receive_exit
	PACKET_THUNK nfp_ending_counted_exit_thunk, nfp_ending_counted_exit

// In place of nfp_packets_entry_thunk while a thread's arrays are trusted (snapshot.c): only notes which call it is, unless it is
// inside another one (nfp_late_is_inside). May change rax, rcx and rdx, which the template restores.
	.p2align 4
	.globl nfp_trusted_entry_thunk
	.hidden nfp_trusted_entry_thunk
nfp_trusted_entry_thunk:
	endbr64
	testb $NFP_GATE_PACKETS | NFP_GATE_AUTO, NFP_THREAD_GATE(%r11)
	jnz nfp_packets_entry_thunk
	cmpq $0, NFP_THREAD_LIMIT(%r11) // a block of an earlier session
	je nfp_packets_entry_thunk
	mov %ecx, %edx
	shr $NFP_KIND_SHIFT, %edx
	shl $NFP_PROGRAM_SHIFT, %edx
	add nfp_library + NFP_LIBRARY_PROGRAMS(%rip), %rdx
	cmpb $0, NFP_PROGRAM_PLAIN(%rdx)
	je nfp_packets_entry_thunk
	mov NFP_THREAD_HANDING(%r11), %edx
	add $NFP_FRAME_RETURN, %eax
	test %edx, %edx
	jz 1f
	sub %eax, %edx
	jg 2f
1:	mov %eax, NFP_THREAD_HANDING(%r11)
2:	ret

	.section .note.GNU-stack, "", @progbits
