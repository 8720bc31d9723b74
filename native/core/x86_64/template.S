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
//
// Rules. At a function's entry and just before its ret the 128 bytes below rsp are dead and the kernel keeps
// signal frames out of them, so registers are saved there without moving rsp. Every register that is touched
// is restored, caller-saved ones too (gcc -fipa-ra keeps values in them across local calls); flags are dead
// at both places. No vector or x87 state is touched. The tag is stored last: it commits the record (partner:
// nfp_drain). The position is compared with limit first and then taken by one xadd without lock: it is
// atomic against this thread's signal handlers, which are the only other writers.
#include "nfprobe/ring.h"
#include "nfprobe/session.h"

// Kinds of fields, in step with enum nfp_field in trampoline.h.
#define FIELD_TLS 0
#define FIELD_GATE 1
#define FIELD_TAG 2
#define FIELD_PROGRAM 3
#define FIELD_RETURN_MASK 4
#define FIELD_SNIPPET 5

	.section .text.nfp_templates, "ax", @progbits

.macro TEMPLATE name
	.p2align 6
	.globl nfp_template_\name
	.hidden nfp_template_\name
nfp_template_\name:
	.set .Lbase, nfp_template_\name
	.pushsection .rodata.nfp_fields_\name, "a"
	.globl nfp_fields_\name
	.hidden nfp_fields_\name
	.p2align 2
nfp_fields_\name:
	.popsection
	.pushsection .rodata.nfp_rows_\name, "a"
	.globl nfp_rows_\name
	.hidden nfp_rows_\name
	.p2align 2
nfp_rows_\name:
	.popsection
.endm

.macro TEMPLATE_END name
	.globl nfp_template_end_\name
	.hidden nfp_template_end_\name
nfp_template_end_\name:
	.pushsection .rodata.nfp_fields_\name
	.short -1, -1, 0, 0
	.popsection
	.pushsection .rodata.nfp_rows_\name
	.short -1, -1, -1
	.popsection
.Lend_\name:
.endm

// A field of `bytes` bytes ends here. `argument` says which (the record kind of a tag).
.macro FIELD name, kind, bytes, argument=0
	.pushsection .rodata.nfp_fields_\name
	.short \kind, .Lfield\@ - nfp_template_\name, \bytes, \argument
	.popsection
.Lfield\@ = . - \bytes
.endm

// Kinds of unwind rows, in step with enum nfp_row in trampoline.c.
#define ROW_STACK 0  // the canonical frame address is rsp + cfa
#define ROW_PUSHED 1 // it is rsp + 16, and rbp has been pushed
#define ROW_FRAME 2  // it is rbp + 16
#define ROW_LEFT 3   // it is rsp + 8 again, and rbp is the caller's

// From here on the canonical frame address is what the kind says.
.macro ROW name, cfa, kind=ROW_STACK
.Lrow\@:
	.pushsection .rodata.nfp_rows_\name
	.short .Lrow\@ - nfp_template_\name, \cfa, \kind
	.popsection
.endm

.macro THREAD name
	mov %fs:0, %r11 // the displacement is the offset of the thread block pointer
	FIELD \name, FIELD_TLS, 4
.endm

.macro TEST_GATE name
	testb $0, NFP_THREAD_GATE(%r11)
	FIELD \name, FIELD_GATE, 1
.endm

// rcx = address of a reserved slot, CF = lap bit; or to \full. Uses rax.
.macro RESERVE full
	mov NFP_THREAD_POSITION(%r11), %rax
	cmp NFP_THREAD_LIMIT(%r11), %rax
	jae \full
	mov $NFP_RECORD_BYTES, %eax
	xadd %rax, NFP_THREAD_POSITION(%r11)
	mov NFP_THREAD_MASK(%r11), %rcx
	and %rax, %rcx
	add NFP_THREAD_BASE(%r11), %rcx
	and NFP_THREAD_RING_BYTES(%r11), %rax
	cmp $1, %rax // carry when the lap number is even
.endm

// r11d = tag with the lap bit from CF.
.macro TAG name, kind
	mov $0, %r11d
	FIELD \name, FIELD_TAG, 4, \kind
	rcr $1, %r11d
.endm

.macro ENTRY name, closed, kind=NFP_ENTRY
	mov %r11, -8(%rsp)
	THREAD \name
	TEST_GATE \name
	jz \closed
	mov %rax, -16(%rsp)
	mov %rdx, -24(%rsp)
	mov %rcx, -32(%rsp)
.Lentry_again_\name:
	RESERVE .Lentry_full_\name
	TAG \name, \kind
	rdtsc
	mov %eax, NFP_RECORD_WORD(%rcx)
	mov %edx, NFP_RECORD_WORD + 4(%rcx)
	mov %esp, NFP_RECORD_RSP(%rcx)
	mov %r11d, NFP_RECORD_TAG(%rcx)
.Lentry_done_\name:
	mov -32(%rsp), %rcx
	mov -24(%rsp), %rdx
	mov -16(%rsp), %rax
	mov -8(%rsp), %r11
.endm

// Out of line: the ring is full or not there. The slow path answers with the thread block, or 0: not recorded;
// then it goes on at \unrecorded, or where it goes on in any case.
.macro ENTRY_SLOW name, cfa, unrecorded
	ROW \name, \cfa
.Lentry_full_\name:
	lea -48(%rsp), %rsp
	ROW \name, \cfa + 48
	mov $NFP_LOST_CALL, %eax
	call *NFP_THREAD_SLOW(%r11)
	lea 48(%rsp), %rsp
	ROW \name, \cfa
	test %r11, %r11
	jnz .Lentry_again_\name
	.ifb \unrecorded
	jmp .Lentry_done_\name
	.else
	jmp \unrecorded
	.endif
.endm

// The exit probe. Ends with every register as the function left it.
.macro EXIT name
	mov %r11, -8(%rsp)
	THREAD \name
	TEST_GATE \name
	jz .Lleft_\name
	mov %rax, -16(%rsp)
	mov %rdx, -24(%rsp)
	mov %rcx, -32(%rsp)
	rdtsc
	shl $32, %rdx
	or %rax, %rdx
.Lexit_again_\name:
	RESERVE .Lexit_full_\name
	mov %rdx, NFP_RECORD_WORD(%rcx)
	TAG \name, NFP_EXIT
	mov %esp, NFP_RECORD_RSP(%rcx)
	mov %r11d, NFP_RECORD_TAG(%rcx)
.Lexit_done_\name:
	mov -32(%rsp), %rcx
	mov -24(%rsp), %rdx
	mov -16(%rsp), %rax
.Lleft_\name:
	mov -8(%rsp), %r11
.endm

.macro EXIT_SLOW name
	ROW \name, 8
.Lexit_full_\name:
	lea -48(%rsp), %rsp
	ROW \name, 56
	mov $NFP_LOST_CALL, %eax
	call *NFP_THREAD_SLOW(%r11)
	lea 48(%rsp), %rsp
	ROW \name, 8
	test %r11, %r11
	jnz .Lexit_again_\name
	jmp .Lexit_done_\name
.endm

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
	mov -8(%rsp), %r11
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
	mov -8(%rsp), %r11
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
// What they held stands below rsp since the entry probe saved it there. A call that was not recorded, or whose
// gate is closed, does not run it. trampoline.c fills the room and jumps from the snippet's end to the room's.

#define SNIPPET_ROOM 128

.macro CAPTURE name
	.skip SNIPPET_ROOM, 0xcc
	FIELD \name, FIELD_SNIPPET, SNIPPET_ROOM
	mov %rax, %rdx
	THREAD \name
	TEST_GATE \name
	jz .Lvalue_done_\name
.Lvalue_again_\name:
	RESERVE .Lvalue_full_\name
	mov %rdx, NFP_RECORD_WORD(%rcx)
	TAG \name, NFP_VALUE
	mov %esp, NFP_RECORD_RSP(%rcx)
	mov %r11d, NFP_RECORD_TAG(%rcx)
.Lvalue_done_\name:
	mov -32(%rsp), %rcx
	mov -24(%rsp), %rdx
	mov -16(%rsp), %rax
	mov -8(%rsp), %r11
.endm

.macro CAPTURE_SLOW name
	ENTRY_SLOW \name, 8, .Lvalue_done_\name
.Lvalue_full_\name:
	lea -48(%rsp), %rsp
	ROW \name, 56
	mov $NFP_LOST_CALL, %eax
	call *NFP_THREAD_SLOW(%r11)
	lea 48(%rsp), %rsp
	ROW \name, 8
	test %r11, %r11
	jnz .Lvalue_again_\name
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
	mov -8(%rsp), %r11
	jmp .Lcall_value_go
	TEMPLATE_END call_value

	TEMPLATE enter_value
	ROW enter_value, 8
	ENTRY enter_value, .Lenter_value_closed
	CAPTURE enter_value
	jmp .Lend_enter_value
	CAPTURE_SLOW enter_value
.Lenter_value_closed:
	mov -8(%rsp), %r11
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
	mov -8(%rsp), %r11
	TEMPLATE_END \name
.endm

	COPY copy_0, 0
	COPY copy_2, 2
	COPY copy_4, 4
	COPY copy_8, 8
	COPY copy_16, 16
	COPY copy_32, 32
	COPY copy_64, 64

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

.macro STORE_ARGUMENTS
	mov %rdi, FRAME_RDI(%rsp)
	mov %rsi, FRAME_RSI(%rsp)
	mov %rcx, FRAME_RCX(%rsp)
	mov %r8, FRAME_R8(%rsp)
	mov %r9, FRAME_R9(%rsp)
.endm

// ---- receive: a poll; nothing is written when it returned nothing -----------------------------------------

	TEMPLATE receive
	ROW receive, 8
	mov %r11, -8(%rsp)
	THREAD receive
	TEST_GATE receive
	jz .Lreceive_closed
	lea -FRAME(%rsp), %rsp
	ROW receive, FRAME + 8
	mov %rax, FRAME_RAX(%rsp)
	mov %rdx, FRAME_RDX(%rsp)
	STORE_ARGUMENTS
	rdtsc
	shl $32, %rdx
	or %rax, %rdx
	mov %rdx, FRAME_TSC(%rsp)
	mov FRAME_RDX(%rsp), %rdx
	mov FRAME_RAX(%rsp), %rax
	mov FRAME_R11(%rsp), %r11
	call nfp_template_end_receive
	// FRAME_RDX holds an argument until the capture has read it: this rdx goes elsewhere.
	mov %r11, FRAME_R11(%rsp)
	mov %rax, FRAME_RAX(%rsp)
	mov %rdx, -8(%rsp)
	mov %rcx, -16(%rsp)
	THREAD receive
	TEST_GATE receive
	jz .Lreceive_left
	rdtsc
	shl $32, %rdx
	or %rax, %rdx
	testl $0, FRAME_RAX(%rsp)
	FIELD receive, FIELD_RETURN_MASK, 4
	jnz .Lreceive_some
	cmpq $0, NFP_THREAD_LIMIT(%r11) // this thread has no ring yet: C gives it one and counts
	je .Lreceive_some
	mov NFP_THREAD_SHARED(%r11), %r11
	sub FRAME_TSC(%rsp), %rdx
	add %rdx, NFP_SHARED_EMPTY_TICKS(%r11)
	incq NFP_SHARED_EMPTY_POLLS(%r11)
.Lreceive_left:
	mov -16(%rsp), %rcx
	mov -8(%rsp), %rdx
	mov FRAME_RAX(%rsp), %rax
	mov FRAME_R11(%rsp), %r11
	lea FRAME(%rsp), %rsp
	ROW receive, 8
	ret
	ROW receive, FRAME + 8
.Lreceive_some:
	lea -16(%rsp), %rsp
	ROW receive, FRAME + 24
	mov $0, %ecx
	FIELD receive, FIELD_PROGRAM, 4
	lea 16(%rsp), %rax
	call *NFP_THREAD_RECEIVE_EXIT(%r11)
	lea 16(%rsp), %rsp
	ROW receive, FRAME + 8
	jmp .Lreceive_left
	ROW receive, 8
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
	testb $NFP_GATE_PACKETS, NFP_THREAD_GATE(%r11)
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
