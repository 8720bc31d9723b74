// SPDX-License-Identifier: Apache-2.0
// firewall: the program. One thread makes packets (generator.c), one works on them (the loop below), the
// main thread waits for SIGINT. At the end it prints its own counts, to compare a measurement with.
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include "firewall.h"

struct fw_options {
	uint64_t packets, seed, slow_every, slow_us, slow_flow_every, burst_every;
	uint32_t rules, slow_flow_rules, burst_packets;
	double rate;
	const char *log, *faults;
	bool start_on_stdin;
	int worker_cpu; // -1: any
};

struct fw_worker {
	struct fw_port *port;
	struct fw_rules rules;
	struct fw_counters counters;
	struct fw_watch watch;
	struct fw_generator *generator;
	uint64_t busy_ticks, total_ticks;
};

static const char USAGE[] =
    "usage: firewall [--packets N] [--rate PPS] [--seed N] [--rules N] [--slow-every BATCHES] [--slow-us "
    "US]\n"
    "                [--worker-cpu CPU] [--log FILE] [--start-on-stdin] [--faults FILE]\n"
    "                [--slow-flow-every PACKETS] [--slow-flow-rules N] [--burst-every PACKETS] "
    "[--burst-packets N]\n"
    "  --packets N       stop after N packets (default 0: until SIGINT)\n"
    "  --rate PPS        average arrival rate (default 500000)\n"
    "  --slow-every N    every Nth output takes long (default 4000; 0: never), for --slow-us (default 1500)\n"
    "  --worker-cpu CPU  the worker has this CPU for itself, as a dataplane core has\n"
    "  --slow-flow-every every Nth packet is of a flow that passes --slow-flow-rules more (default 0: none)\n"
    "  --burst-every     after N packets --burst-packets of one flow arrive at once (default 0: never)\n"
    "  --faults FILE     all that makes packets late, as far as the program can know it (faults.c)\n"
    "  --log FILE        batch number, start and end ticks of each slow output\n"
    "  --start-on-stdin  print `ready` to standard error and make no packet before a line comes in\n";

static void process_batch(struct fw_worker *worker, struct fw_packet **packets, uint32_t count)
{
	struct fw_packet *allowed[FW_BURST], *denied[FW_BURST];
	uint32_t allow = 0, deny = 0;
	fw_stage = FW_PARSE;
	fw_parse(packets, count);
	fw_stage = FW_CLASSIFY;
	fw_classify(&worker->rules, packets, count);
	fw_stage = FW_COUNT;
	fw_count(&worker->counters, &worker->rules, packets, count);
	for (uint32_t i = 0; i < count; i++) {
		if (packets[i]->verdict == FW_DENY)
			denied[deny++] = packets[i];
		else
			allowed[allow++] = packets[i];
	}
	fw_stage = FW_TRANSMIT;
	if (allow)
		fw_transmit(worker->port, allowed, allow);
	fw_stage = FW_DROP;
	if (deny)
		fw_drop(worker->port, denied, deny);
	fw_stage = FW_POLL;
}

static void *work(void *argument)
{
	struct fw_worker *worker = argument;
	struct fw_packet *packets[FW_BURST];
	uint64_t begin = fw_ticks();
	fw_watch_init(&worker->watch, worker->port->faults, worker->generator->ticks_per_second);
	for (;;) {
		bool done = atomic_load(&worker->generator->done); // before the poll: nothing comes after it
		uint64_t start = fw_ticks();
		uint32_t count = fw_receive(worker->port, packets, FW_BURST);
		fw_watch_poll(&worker->watch, start, count);
		if (count) {
			process_batch(worker, packets, count);
			fw_watch_batch(&worker->watch, &worker->rules, start, packets, count,
			               worker->port->slow_outputs);
			worker->busy_ticks += fw_ticks() - start;
		} else if (done) {
			break;
		}
	}
	worker->total_ticks = fw_ticks() - begin;
	return NULL;
}

static double measure_ticks_per_second(void)
{
	struct timespec from, to, pause = {0, 50 * 1000 * 1000};
	clock_gettime(CLOCK_MONOTONIC, &from);
	uint64_t start = fw_ticks();
	nanosleep(&pause, NULL);
	clock_gettime(CLOCK_MONOTONIC, &to);
	uint64_t ticks = fw_ticks() - start;
	return (double)ticks /
	       ((double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9);
}

static struct fw_port *make_port(const struct fw_options *options, FILE *faults, double ticks_per_second)
{
	struct fw_port *port = aligned_alloc(64, sizeof(*port));
	struct fw_packet *packets = calloc(FW_POOL, sizeof(*packets));
	uint8_t *buffers = calloc(FW_POOL, FW_HEADROOM + FW_FRAME_MAX);
	if (!port || !packets || !buffers)
		return NULL;
	memset(port, 0, sizeof(*port));
	for (uint32_t i = 0; i < FW_POOL; i++) {
		struct fw_packet *packet = &packets[i];
		packet->data = buffers + (size_t)i * (FW_HEADROOM + FW_FRAME_MAX);
		fw_ring_put(&port->unused, &packet, 1);
	}
	port->slow_every = options->slow_every;
	port->faults = faults;
	port->slow_ticks = (uint64_t)((double)options->slow_us * 1e-6 * ticks_per_second);
	return port;
}

static void print_counts(const struct fw_worker *worker, double ticks_per_second)
{
	const struct fw_port *port = worker->port;
	printf("{\"received\": %lu, \"transmitted\": %lu, \"dropped\": %lu, \"batches\": %lu, "
	       "\"empty_polls\": %lu, ",
	       (unsigned long)port->received, (unsigned long)port->transmitted, (unsigned long)port->dropped,
	       (unsigned long)port->batches, (unsigned long)port->empty_polls);
	printf("\"unmatched\": %lu, \"slow_outputs\": %lu, \"seconds\": %.3f, \"busy_share\": %.3f, "
	       "\"batch_sizes\": {",
	       (unsigned long)worker->counters.unmatched, (unsigned long)port->slow_outputs,
	       (double)worker->total_ticks / ticks_per_second,
	       worker->total_ticks ? (double)worker->busy_ticks / (double)worker->total_ticks : 0.0);
	const char *separator = "";
	for (uint32_t size = 1; size <= FW_BURST; size++) {
		if (!port->batch_sizes[size])
			continue;
		printf("%s\"%u\": %lu", separator, size, (unsigned long)port->batch_sizes[size]);
		separator = ", ";
	}
	printf("}}\n");
}

static const struct option OPTIONS[] = {
    {"packets", required_argument, NULL, 'p'},
    {"rate", required_argument, NULL, 'r'},
    {"seed", required_argument, NULL, 's'},
    {"rules", required_argument, NULL, 'n'},
    {"slow-every", required_argument, NULL, 'e'},
    {"slow-us", required_argument, NULL, 'u'},
    {"worker-cpu", required_argument, NULL, 'c'},
    {"slow-flow-every", required_argument, NULL, 'f'},
    {"slow-flow-rules", required_argument, NULL, 'F'},
    {"burst-every", required_argument, NULL, 'b'},
    {"burst-packets", required_argument, NULL, 'B'},
    {"faults", required_argument, NULL, 't'},
    {"log", required_argument, NULL, 'l'},
    {"start-on-stdin", no_argument, NULL, 'w'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static bool set_option(int option, struct fw_options *options)
{
	switch (option) {
	case 'p':
		options->packets = strtoull(optarg, NULL, 10);
		break;
	case 'r':
		options->rate = strtod(optarg, NULL);
		break;
	case 'c':
		options->worker_cpu = atoi(optarg);
		break;
	case 's':
		options->seed = strtoull(optarg, NULL, 10);
		break;
	case 'n':
		options->rules = (uint32_t)strtoul(optarg, NULL, 10);
		break;
	case 'e':
		options->slow_every = strtoull(optarg, NULL, 10);
		break;
	case 'u':
		options->slow_us = strtoull(optarg, NULL, 10);
		break;
	case 'f':
		options->slow_flow_every = strtoull(optarg, NULL, 10);
		break;
	case 'F':
		options->slow_flow_rules = (uint32_t)strtoul(optarg, NULL, 10);
		break;
	case 'b':
		options->burst_every = strtoull(optarg, NULL, 10);
		break;
	case 'B':
		options->burst_packets = (uint32_t)strtoul(optarg, NULL, 10);
		break;
	case 't':
		options->faults = optarg;
		break;
	case 'l':
		options->log = optarg;
		break;
	case 'w':
		options->start_on_stdin = true;
		break;
	default:
		return false;
	}
	return true;
}

static bool parse_options(int argc, char **argv, struct fw_options *options)
{
	for (int option; (option = getopt_long(argc, argv, "", OPTIONS, NULL)) != -1;) {
		if (!set_option(option, options))
			return false;
	}
	return optind == argc && options->rate > 0;
}

// Waits until the generator has made all its packets or a signal asks to stop.
static void wait_for_end(struct fw_generator *generator, const sigset_t *signals)
{
	const struct timespec pause = {0, 20 * 1000 * 1000};
	while (!atomic_load(&generator->done)) {
		if (sigtimedwait(signals, NULL, &pause) > 0)
			atomic_store(&generator->stop, true);
	}
}

static bool wait_for_line(void)
{
	fputs("ready\n", stderr);
	for (int c = getchar(); c != '\n'; c = getchar()) {
		if (c == EOF)
			return false;
	}
	return true;
}

// Pins the worker to its CPU and keeps the calling thread, which makes the others, off it.
static void give_cpu(pthread_t worker, int cpu)
{
	cpu_set_t own, others;
	CPU_ZERO(&own);
	CPU_SET(cpu, &own);
	sched_getaffinity(0, sizeof(others), &others);
	CPU_CLR(cpu, &others);
	if (CPU_COUNT(&others) > 0 && pthread_setaffinity_np(worker, sizeof(own), &own) == 0)
		sched_setaffinity(0, sizeof(others), &others);
}

static int run(const struct fw_options *options, struct fw_worker *worker, double ticks_per_second)
{
	struct fw_generator *generator = worker->generator;
	pthread_t generator_thread, worker_thread;
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	prctl(PR_SET_TIMERSLACK, 1UL); // threads made from here on inherit it: the generator's gaps are short
	if (pthread_create(&worker_thread, NULL, work, worker))
		return 1;
	pthread_setname_np(worker_thread, "fw-worker");
	if (options->worker_cpu >= 0)
		give_cpu(worker_thread, options->worker_cpu);
	if (options->start_on_stdin && !wait_for_line())
		return 1;
	if (pthread_create(&generator_thread, NULL, fw_generate, generator))
		return 1;
	pthread_setname_np(generator_thread, "fw-generator");
	wait_for_end(generator, &signals);
	pthread_join(generator_thread, NULL);
	pthread_join(worker_thread, NULL);
	print_counts(worker, ticks_per_second);
	return 0;
}

int main(int argc, char **argv)
{
	struct fw_options options = {
	    .worker_cpu = -1, .seed = 1, .slow_every = 4000, .slow_us = 1500, .rules = 1000, .rate = 500000};
	if (!parse_options(argc, argv, &options)) {
		fputs(USAGE, stderr);
		return 2;
	}
	double ticks_per_second = measure_ticks_per_second();
	FILE *faults = options.faults ? fopen(options.faults, "w") : NULL;
	if (options.faults && !faults) {
		perror(options.faults);
		return 1;
	}
	struct fw_worker worker = {.port = make_port(&options, faults, ticks_per_second)};
	struct fw_generator generator = {.port = worker.port,
	                                 .packets = options.packets,
	                                 .rate = options.rate,
	                                 .slow_flow_every = options.slow_flow_every,
	                                 .burst_every = options.burst_every,
	                                 .burst_packets = options.burst_packets,
	                                 .seed = options.seed,
	                                 .ticks_per_second = ticks_per_second};
	worker.generator = &generator;
	if (!worker.port ||
	    fw_rules_init(&worker.rules, options.rules, options.slow_flow_rules, options.seed)) {
		fputs("firewall: no memory\n", stderr);
		return 1;
	}
	if (options.log && !(worker.port->log = fopen(options.log, "w"))) {
		perror(options.log);
		return 1;
	}
	int status = run(&options, &worker, ticks_per_second);
	if (worker.port->log)
		fclose(worker.port->log);
	if (faults)
		fclose(faults);
	fw_rules_deinit(&worker.rules);
	return status;
}
