// SPDX-License-Identifier: Apache-2.0
// The trampolines of receive, transmit and drop functions: they keep the arguments in a frame of their own and
// leave the rest to C (native/probe/capture.c). template.S has the others, template_macros.inc the rules.
#include "template_macros.inc"

// ---- the frame of receive, transmit and drop probes ---------------------------------------------------
// Above it the return address. It is one cache line with what the call pushes, so that the function's own frame lies in
// its lines as without a probe: moved by other distances, the loops of some forwarders take a tenth longer. What is below
// the frame, and below rsp but while C runs, are registers that outlive nothing but the probe. In step with struct
// nfp_frame in native/probe/frame.h.

#define FRAME 56
#define FRAME_RDI 0 // the six arguments, in their order
#define FRAME_RSI 8
#define FRAME_RDX 16
#define FRAME_RCX 24
#define FRAME_R8 32
#define FRAME_R9 40
#define FRAME_TSC 48
#define SAVED 32
#define SAVED_RAX -8
#define SAVED_RDX -16
#define SAVED_RCX -24
#define SAVED_R11 -32

.macro STORE_ARGUMENTS below=0
	mov %rdi, FRAME_RDI + \below(%rsp)
	mov %rsi, FRAME_RSI + \below(%rsp)
	mov %rdx, FRAME_RDX + \below(%rsp)
	mov %rcx, FRAME_RCX + \below(%rsp)
	mov %r8, FRAME_R8 + \below(%rsp)
	mov %r9, FRAME_R9 + \below(%rsp)
.endm

.macro SAVE_RESULTS below=0
	mov %r11, SAVED_R11 + \below(%rsp)
	mov %rax, SAVED_RAX + \below(%rsp)
	mov %rdx, SAVED_RDX + \below(%rsp)
	mov %rcx, SAVED_RCX + \below(%rsp)
.endm

.macro RESTORE_RESULTS below=0
	mov SAVED_RCX + \below(%rsp), %rcx
	mov SAVED_RDX + \below(%rsp), %rdx
	mov SAVED_RAX + \below(%rsp), %rax
	mov SAVED_R11 + \below(%rsp), %r11
.endm

// Calls C with what is at rsp; r11 and rdx are set.
.macro CALL_C name, where
	mov $0, %ecx
	FIELD \name, FIELD_PROGRAM, 4
	mov %rsp, %rax
	call *\where(%r11)
.endm

// The same with the frame and the registers below it.
.macro CALL_WITH_FRAME name, where
	lea -SAVED(%rsp), %rsp
	ROW \name, FRAME + 8 + SAVED
	CALL_C \name, \where
	lea SAVED(%rsp), %rsp
	ROW \name, FRAME + 8
.endm

// ---- receive: a poll; nothing is written when it returned nothing -----------------------------------------
// Two ways: of threads whose counters are read there is room for readings below the frame (struct nfp_counted_frame), and
// C fills it before the call. One test of the gate tells three cases apart, so that threads without counters execute
// nothing for the others: of the bits tested one is set when the gate is open, two when it is so for a counted thread.

#define BELOW_COUNTED 80 // 48 of readings, then SAVED

.macro RECEIVE way, below
	lea -FRAME - \below(%rsp), %rsp
	ROW receive, FRAME + 8 + \below
	mov %rax, SAVED_RAX + \below(%rsp)
	STORE_ARGUMENTS \below
	.if \below
	mov %rsp, %rax
	call *NFP_THREAD_COUNTED_ENTRY(%r11)
	mov FRAME_RCX + \below(%rsp), %rcx
	.endif
	mov FRAME_TSC + \below(%rsp), %r11 // it was saved there, before there was a frame
	rdtsc
	shl $32, %rdx
	or %rax, %rdx
	mov %rdx, FRAME_TSC + \below(%rsp)
	mov FRAME_RDX + \below(%rsp), %rdx
	mov SAVED_RAX + \below(%rsp), %rax
	call nfp_template_end_receive
	SAVE_RESULTS \below
	THREAD receive
	TEST_GATE receive
	jz .Lreceive_left_\way
	rdtsc
	shl $32, %rdx
	or %rax, %rdx
	testl $0, SAVED_RAX + \below(%rsp)
	FIELD receive, FIELD_RETURN_MASK, 4
	.byte 0x75 // jnz; jz or jmp where the return value says it in another way
	FIELD receive, FIELD_WHEN, 1
	.byte .Lreceive_some_\way - . - 1
	cmpq $0, NFP_THREAD_LIMIT(%r11) // this thread has no ring yet: C gives it one and counts
	je .Lreceive_some_\way
	// One store: when this queue was seen empty (partner: nfp_queue_emptied, which hashes in the same way).
	mov FRAME_RSI + \below(%rsp), %ecx // or another argument, or and $0, %ecx
	FIELD receive, FIELD_QUEUE, 4, \below
	xor $0x7fffffff, %ecx
	FIELD receive, FIELD_PROGRAM, 4
	imul $NFP_QUEUE_HASH, %ecx, %ecx
	mov FRAME_TSC + \below(%rsp), %rax
	shl $NFP_QUEUE_MARK_BITS, %rax
	shr $NFP_QUEUE_SHIFT, %ecx
	mov %cx, %ax
	shr $NFP_QUEUE_MARK_BITS, %ecx
	shl $NFP_POLLED_SHIFT, %ecx
	mov %rax, NFP_THREAD_POLLED(%r11,%rcx)
	mov NFP_THREAD_SHARED(%r11), %r11
	sub FRAME_TSC + \below(%rsp), %rdx
	add %rdx, NFP_SHARED_EMPTY_TICKS(%r11)
	incq NFP_SHARED_EMPTY_POLLS(%r11)
.Lreceive_left_\way:
	RESTORE_RESULTS \below
	lea FRAME + \below(%rsp), %rsp
	ROW receive, 8
	ret
	ROW receive, FRAME + 8 + \below
.Lreceive_some_\way:
	.if \below
	CALL_C receive, NFP_THREAD_COUNTED_EXIT
	.else
	CALL_WITH_FRAME receive, NFP_THREAD_RECEIVE_EXIT
	.endif
	jmp .Lreceive_left_\way
	ROW receive, 8
.endm

	TEMPLATE receive
	ROW receive, 8
	mov %r11, -8(%rsp)
	THREAD receive
	testb $0, NFP_THREAD_GATE(%r11)
	FIELD receive, FIELD_GATE, 1, NFP_GATE_COUNTED
	jp .Lreceive_aside
	RECEIVE open, 0
.Lreceive_aside:
	jns .Lreceive_closed
	RECEIVE counted, BELOW_COUNTED
.Lreceive_closed:
	mov -8(%rsp), %r11
	TEMPLATE_END receive

// ---- packets: transmit and drop ---------------------------------------------------------------------------

	TEMPLATE packets
	ROW packets, 8
	ENTRY packets, .Lpackets_closed, keeps=1 // FRAME_TSC
	lea -FRAME(%rsp), %rsp
	ROW packets, FRAME + 8
	mov %r11, SAVED_R11(%rsp)
	mov %rax, SAVED_RAX(%rsp)
	STORE_ARGUMENTS
	THREAD packets
	testb $NFP_GATE_PACKETS | NFP_GATE_LATE, NFP_THREAD_GATE(%r11)
	FIELD packets, FIELD_DESCRIBE, 1 // or always: where the number of packets can be read at the entry only
	.short 0x850f // jnz; nop and jmp where C is called in any case
	FIELD packets, FIELD_ALWAYS, 2
	.long .Lpackets_describe - . - 4
.Lpackets_call:
	mov SAVED_R11(%rsp), %r11
	call nfp_template_end_packets
	SAVE_RESULTS
	THREAD packets
	TEST_GATE packets
	jz .Lpackets_left
	rdtsc
	shl $32, %rdx
	or %rax, %rdx
	CALL_WITH_FRAME packets, NFP_THREAD_PACKETS_EXIT
.Lpackets_left:
	RESTORE_RESULTS
	lea FRAME(%rsp), %rsp
	ROW packets, 8
	ret
	ROW packets, FRAME + 8
.Lpackets_describe:
	CALL_WITH_FRAME packets, NFP_THREAD_PACKETS_ENTRY
	mov FRAME_RCX(%rsp), %rcx
	mov FRAME_RDX(%rsp), %rdx
	mov SAVED_RAX(%rsp), %rax
	jmp .Lpackets_call
	ENTRY_SLOW packets, 8, .Lpackets_unrecorded
.Lpackets_unrecorded:
	xor %edx, %edx
	jmp .Lentry_done_packets
.Lpackets_closed:
	mov -8(%rsp), %rcx
	TEMPLATE_END packets

	.section .note.GNU-stack, "", @progbits
