// SPDX-License-Identifier: Apache-2.0
// IP addresses as text: dotted quads, and IPv6 in the one form of RFC 5952 (lower case, the first longest run of
// zero groups shortened). No libc call: it runs once or twice per packet.
#ifndef NFPROBE_OTLP_ADDRESS_H
#define NFPROBE_OTLP_ADDRESS_H
#include <stdint.h>

// cdef begin

// Writes the address without a terminating zero and returns its length (at most 39). version is 4 or 6.
uint32_t nfp_address_format(const uint8_t *bytes, uint8_t version, char *text);

// cdef end
#endif
