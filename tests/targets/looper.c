// SPDX-License-Identifier: Apache-2.0
// A shared library with a function that branches to its own start: it can be probed through GOT slots only.
__asm__(".text\n.globl count_down\n.type count_down, @function\ncount_down:\n.cfi_startproc\n"
	"add $1, %rax\n dec %rdi\n jnz count_down\n ret\n.cfi_endproc\n.size count_down, . - count_down\n");
