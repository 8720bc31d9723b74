// SPDX-License-Identifier: Apache-2.0
// The System V calling convention: rdi, rsi, rdx, rcx, r8 and r9 hold the first arguments of a call, in this order.
// cdef: macros
#ifndef NFPROBE_ARGUMENTS_H
#define NFPROBE_ARGUMENTS_H
#define NFP_REGISTER_ARGUMENTS 6
#endif
