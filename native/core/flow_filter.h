// SPDX-License-Identifier: Apache-2.0
// Which packets a filter of libpcap takes. Of a packet only its flow is kept, so the filter sees headers that are made
// up from that: raw IP, without options. otel_nfprobe/pipeline/flowfilter.py refuses filters that look at anything else.
#ifndef NFPROBE_FLOW_FILTER_H
#define NFPROBE_FLOW_FILTER_H
#include "columns.h"

// cdef begin

// pcap_offline_filter: a compiled filter, struct pcap_pkthdr, the packet's bytes. Returns 0 when it does not match.
typedef int nfp_flow_run(const void *program, const void *header, const uint8_t *bytes);

// Writes to `matches` whether each of `count` packets matches.
void nfp_flow_match(nfp_flow_run *run, const void *program, const struct nfp_packet *packets, size_t count,
                    uint8_t *matches);

// cdef end
#endif
