// SPDX-License-Identifier: Apache-2.0
// The packet digest of abi/digest.h for Python: the same inline code that runs inside the target, so that
// tests compare it with tests/support/packet_digest.py, and so that the digests of many packets need no Python loop.
#ifndef NFPROBE_CORE_DIGEST_CHECK_H
#define NFPROBE_CORE_DIGEST_CHECK_H
#include <stdint.h>

// cdef begin

// SipHash-1-3 of `count` bytes.
uint64_t nfp_digest_siphash(const uint8_t *bytes, uint32_t count, const uint64_t *key);

// Describes one packet; `facts` has room for the 56 bytes of struct nfp_packet_facts.
void nfp_digest_describe(const uint8_t *bytes, uint32_t readable, uint32_t packet_length, uint32_t link_layer,
                         const uint64_t *key, uint8_t *facts);

// Describes `count` packets of a capture: packet i has `readable[i]` bytes at `bytes + offsets[i]`. The caller
// has checked that they are there. `facts` has room for 56 bytes of each.
void nfp_digest_describe_all(const uint8_t *bytes, const uint64_t *offsets, const uint64_t *readable,
                             const uint64_t *lengths, const uint64_t *link_layers, uint64_t count,
                             const uint64_t *key, uint8_t *facts);

// The ids of `count` packets, from what either of the two above has written of them.
void nfp_digest_ids(const uint8_t *facts, uint64_t count, uint64_t *ids);

// cdef end
#endif
