# SPDX-License-Identifier: Apache-2.0
set(PROBE_ARCH_FLAGS -mno-outline-atomics)
set(BOOTSTRAP_ARCH_FLAGS)
