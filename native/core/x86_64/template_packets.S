// SPDX-License-Identifier: Apache-2.0
// The trampolines of receive, transmit and drop functions: they keep the arguments in a frame of their own and
// leave the rest to C (native/probe/capture.c). template.S has the others, template_macros.inc the rules.
#include "template_macros.inc"

// ---- the frame of receive, transmit and drop probes ---------------------------------------------------
// Above it the return address. In step with struct nfp_frame in native/probe/capture.c.

#define FRAME 72
#define FRAME_TSC 0
#define FRAME_RDI 8 // the six arguments, in their order
#define FRAME_RSI 16
#define FRAME_RDX 24
#define FRAME_RCX 32
#define FRAME_R8 40
#define FRAME_R9 48
#define FRAME_RAX 56
#define FRAME_R11 64

.macro STORE_ARGUMENTS below=0
	mov %rdi, FRAME_RDI + \below(%rsp)
	mov %rsi, FRAME_RSI + \below(%rsp)
	mov %rcx, FRAME_RCX + \below(%rsp)
	mov %r8, FRAME_R8 + \below(%rsp)
	mov %r9, FRAME_R9 + \below(%rsp)
.endm

// ---- receive: a poll; nothing is written when it returned nothing -----------------------------------------
// Two ways: of threads whose counters are read there is room for readings below the frame (struct nfp_counted_frame), and
// C fills it before the call. One test of the gate tells three cases apart, so that threads without counters execute
// nothing for the others: of the bits tested one is set when the gate is open, two when it is so for a counted thread.

#define READINGS 48

.macro RECEIVE way, below, exit
	lea -FRAME - \below(%rsp), %rsp
	ROW receive, FRAME + 8 + \below
	mov %rax, FRAME_RAX + \below(%rsp)
	mov %rdx, FRAME_RDX + \below(%rsp)
	STORE_ARGUMENTS \below
	.if \below
	mov %rsp, %rax
	call *NFP_THREAD_COUNTED_ENTRY(%r11)
	mov FRAME_RCX + \below(%rsp), %rcx
	.endif
	rdtsc
	shl $32, %rdx
	or %rax, %rdx
	mov %rdx, FRAME_TSC + \below(%rsp)
	mov FRAME_RDX + \below(%rsp), %rdx
	mov FRAME_RAX + \below(%rsp), %rax
	mov FRAME_R11 + \below(%rsp), %r11
	call nfp_template_end_receive
	// FRAME_RDX holds an argument until the capture has read it: this rdx goes elsewhere.
	mov %r11, FRAME_R11 + \below(%rsp)
	mov %rax, FRAME_RAX + \below(%rsp)
	mov %rdx, -8(%rsp)
	mov %rcx, -16(%rsp)
	THREAD receive
	TEST_GATE receive
	jz .Lreceive_left_\way
	rdtsc
	shl $32, %rdx
	or %rax, %rdx
	testl $0, FRAME_RAX + \below(%rsp)
	FIELD receive, FIELD_RETURN_MASK, 4
	.byte 0x75 // jnz; jz or jmp where the return value says it in another way
	FIELD receive, FIELD_WHEN, 1
	.byte .Lreceive_some_\way - . - 1
	cmpq $0, NFP_THREAD_LIMIT(%r11) // this thread has no ring yet: C gives it one and counts
	je .Lreceive_some_\way
	// One store: when this queue was seen empty (partner: nfp_queue_emptied, which hashes in the same way).
	mov FRAME_RDI + \below(%rsp), %ecx // or another argument, or and $0, %ecx
	FIELD receive, FIELD_QUEUE, 4, \below
	xor $0x7fffffff, %ecx
	FIELD receive, FIELD_PROGRAM, 4
	imul $NFP_QUEUE_HASH, %ecx, %ecx
	mov FRAME_TSC + \below(%rsp), %rax
	shl $NFP_QUEUE_MARK_BITS, %rax
	shr $NFP_QUEUE_SHIFT, %ecx
	mov %cx, %ax
	shr $NFP_QUEUE_MARK_BITS, %ecx
	mov %rax, NFP_THREAD_EMPTIED(%r11,%rcx,8)
	mov NFP_THREAD_SHARED(%r11), %r11
	sub FRAME_TSC + \below(%rsp), %rdx
	add %rdx, NFP_SHARED_EMPTY_TICKS(%r11)
	incq NFP_SHARED_EMPTY_POLLS(%r11)
.Lreceive_left_\way:
	mov -16(%rsp), %rcx
	mov -8(%rsp), %rdx
	mov FRAME_RAX + \below(%rsp), %rax
	mov FRAME_R11 + \below(%rsp), %r11
	lea FRAME + \below(%rsp), %rsp
	ROW receive, 8
	ret
	ROW receive, FRAME + 8 + \below
.Lreceive_some_\way:
	lea -16(%rsp), %rsp
	ROW receive, FRAME + 24 + \below
	mov $0, %ecx
	FIELD receive, FIELD_PROGRAM, 4
	lea 16(%rsp), %rax
	call *\exit(%r11)
	lea 16(%rsp), %rsp
	ROW receive, FRAME + 8 + \below
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
	RECEIVE open, 0, NFP_THREAD_RECEIVE_EXIT
.Lreceive_aside:
	jns .Lreceive_closed
	RECEIVE counted, READINGS, NFP_THREAD_COUNTED_EXIT
.Lreceive_closed:
	mov -8(%rsp), %r11
	TEMPLATE_END receive

// ---- packets: transmit and drop ---------------------------------------------------------------------------

	TEMPLATE packets
	ROW packets, 8
	ENTRY packets, .Lpackets_closed
	mov %r11, -8(%rsp)
	lea -FRAME(%rsp), %rsp
	ROW packets, FRAME + 8
	mov %rax, FRAME_RAX(%rsp)
	mov %rdx, FRAME_RDX(%rsp)
	STORE_ARGUMENTS
	THREAD packets
	testb $NFP_GATE_PACKETS | NFP_GATE_LATE, NFP_THREAD_GATE(%r11)
	FIELD packets, FIELD_DESCRIBE, 1 // or always: where the number of packets can be read at the entry only
	jnz .Lpackets_describe
.Lpackets_call:
	mov FRAME_R11(%rsp), %r11
	call nfp_template_end_packets
	mov %r11, FRAME_R11(%rsp)
	mov %rax, FRAME_RAX(%rsp)
	mov %rdx, -8(%rsp)
	mov %rcx, -16(%rsp)
	THREAD packets
	TEST_GATE packets
	jz .Lpackets_left
	rdtsc
	shl $32, %rdx
	or %rax, %rdx
	lea -16(%rsp), %rsp
	ROW packets, FRAME + 24
	mov $0, %ecx
	FIELD packets, FIELD_PROGRAM, 4
	lea 16(%rsp), %rax
	call *NFP_THREAD_PACKETS_EXIT(%r11)
	lea 16(%rsp), %rsp
	ROW packets, FRAME + 8
.Lpackets_left:
	mov -16(%rsp), %rcx
	mov -8(%rsp), %rdx
	mov FRAME_RAX(%rsp), %rax
	mov FRAME_R11(%rsp), %r11
	lea FRAME(%rsp), %rsp
	ROW packets, 8
	ret
	ROW packets, FRAME + 8
.Lpackets_describe:
	mov $0, %ecx
	FIELD packets, FIELD_PROGRAM, 4
	mov %rsp, %rax
	call *NFP_THREAD_PACKETS_ENTRY(%r11)
	mov FRAME_RCX(%rsp), %rcx
	mov FRAME_RDX(%rsp), %rdx
	mov FRAME_RAX(%rsp), %rax
	jmp .Lpackets_call
	ENTRY_SLOW packets, 8
.Lpackets_closed:
	mov -8(%rsp), %r11
	TEMPLATE_END packets

	.section .note.GNU-stack, "", @progbits
