// SPDX-License-Identifier: Apache-2.0
// A small network function that works in batches: the target of the demo and of many tests. It knows
// nothing of nfprobe. firewall.yaml tells nfprobe where the fields of struct fw_packet are.
#ifndef FIREWALL_H
#define FIREWALL_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define FW_BURST 32
#define FW_POOL 8192 // packets; a power of two
#define FW_HEADROOM 128
#define FW_FRAME_MAX 512
#define FW_SLOW_DESTINATION 0x0a020000u // 10.2.0.0, of the slow flow
// The compiler must keep these functions as they are written: they are what is measured.
#define FW_FUNCTION __attribute__((noinline, noclone))

enum fw_verdict { FW_ALLOW = 0, FW_DENY = 1 };

struct fw_packet {
	uint8_t *data;          // the buffer; the frame begins data_offset bytes into it
	uint64_t sequence;      // of the generator
	uint16_t data_offset;
	uint16_t source_port;   // from here on: filled in by fw_parse and fw_classify
	uint16_t destination_port;
	uint8_t protocol;
	uint8_t verdict;        // enum fw_verdict
	uint32_t source;
	uint32_t destination;
	uint32_t rule;          // the one that matched, or the number of rules
	uint32_t length;        // of the frame
	uint16_t segment_length; // bytes of it in this buffer: all
	uint16_t reserved0;
	uint32_t reserved1;
	uint64_t arrival;       // time stamp counter when it was put into the ring
	uint64_t reserved2;
};
_Static_assert(offsetof(struct fw_packet, data_offset) == 16, "firewall.yaml says so");
_Static_assert(offsetof(struct fw_packet, length) == 36, "firewall.yaml says so");
_Static_assert(offsetof(struct fw_packet, segment_length) == 40, "firewall.yaml says so");
_Static_assert(offsetof(struct fw_packet, arrival) == 48, "firewall.yaml says so");

// One producer, one consumer.
struct fw_ring {
	_Alignas(64) _Atomic uint64_t head; // written by the producer
	_Alignas(64) _Atomic uint64_t tail; // written by the consumer
	_Alignas(64) struct fw_packet *slot[FW_POOL];
};

struct fw_port {
	struct fw_ring arrived; // generator -> worker
	struct fw_ring unused;  // worker -> generator
	uint64_t received, transmitted, dropped, transmitted_bytes;
	uint64_t batches, empty_polls, transmit_calls, slow_outputs;
	uint64_t batch_sizes[FW_BURST + 1];
	uint64_t slow_every; // transmit calls between two slow ones; 0: never
	uint64_t slow_ticks;
	FILE *log;           // batch number, start and end ticks of each slow output, or NULL
	FILE *faults;        // what makes packets late and when (faults.c), or NULL
};

struct fw_rule {
	uint32_t source, source_mask, destination, destination_mask;
	uint16_t source_port_low, source_port_high, destination_port_low, destination_port_high;
	uint8_t protocol;
	uint8_t verdict;
};

struct fw_rules {
	struct fw_rule *rule;
	uint32_t count;
	uint32_t slow; // the one that only the slow flow reaches, or UINT32_MAX
};

enum fw_stage { FW_POLL = 0, FW_PARSE, FW_CLASSIFY, FW_COUNT, FW_TRANSMIT, FW_DROP };

// What the worker does, for whoever wants to stop it in one function.
extern volatile uint32_t fw_stage;

// What has kept the worker, as far as it can know by itself.
struct fw_watch {
	FILE *log; // NULL: do not watch
	uint64_t checked;       // ticks
	uint64_t backlog_since; // ticks of the poll before the first full one; 0: none
	uint64_t poll;          // ticks of the last poll that found something
	uint64_t polled;        // ticks
	uint64_t cpu_ns;        // of the worker, at `checked`
	double ticks_per_ns;
	uint64_t slow_outputs;
	long preempted;         // involuntary context switches
	uint64_t waited_ns;     // for a CPU, at the last of them
	int schedstat;          // descriptor of the worker's; -1: there is none
};

struct fw_counters {
	uint64_t packets[2], bytes[2]; // by verdict
	uint64_t unmatched;
};

struct fw_generator {
	struct fw_port *port;
	uint64_t packets; // to make; 0: until stopped
	double rate;      // packets per second, on average
	uint64_t seed;
	double ticks_per_second;
	uint64_t slow_flow_every; // packets between two of the slow flow; 0: there is none
	uint64_t burst_every;     // packets between two bursts of one flow; 0: never
	uint32_t burst_packets;
	atomic_bool stop; // set by main
	atomic_bool done; // set by the generator
	uint64_t made;
};

void fw_watch_init(struct fw_watch *watch, FILE *log, double ticks_per_second);
void fw_watch_poll(struct fw_watch *watch, uint64_t start, uint32_t count);
void fw_watch_batch(struct fw_watch *watch, const struct fw_rules *rules, uint64_t start,
                    struct fw_packet **packets, uint32_t count, uint64_t slow_outputs);
uint32_t fw_receive(struct fw_port *port, struct fw_packet **packets, uint32_t count);
uint32_t fw_transmit(struct fw_port *port, struct fw_packet **packets, uint32_t count);
void fw_output(struct fw_port *port, struct fw_packet **packets, uint32_t count);
void fw_drop(struct fw_port *port, struct fw_packet **packets, uint32_t count);
void fw_parse(struct fw_packet **packets, uint32_t count);
void fw_classify(const struct fw_rules *rules, struct fw_packet **packets, uint32_t count);
void fw_count(struct fw_counters *counters, const struct fw_rules *rules, struct fw_packet **packets,
              uint32_t count);

int fw_rules_init(struct fw_rules *rules, uint32_t count, uint32_t slow, uint64_t seed);
void fw_rules_deinit(struct fw_rules *rules);
void *fw_generate(void *generator);
uint32_t fw_ring_put(struct fw_ring *ring, struct fw_packet **packets, uint32_t count);
uint32_t fw_ring_get(struct fw_ring *ring, struct fw_packet **packets, uint32_t count);

static inline uint64_t fw_ticks(void)
{
	return __builtin_ia32_rdtsc();
}

static inline uint64_t fw_random(uint64_t *state) // splitmix64
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ULL;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return z ^ z >> 31;
}
#endif
