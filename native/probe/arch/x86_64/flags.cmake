# SPDX-License-Identifier: Apache-2.0
set(PROBE_ARCH_FLAGS -mno-red-zone -fcf-protection
    $<$<C_COMPILER_ID:GNU>:-mstringop-strategy=unrolled_loop>) # not rep stos: it takes 30 cycles for six words
set(BOOTSTRAP_ARCH_FLAGS -fcf-protection=none)
