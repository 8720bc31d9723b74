// SPDX-License-Identifier: Apache-2.0
// A network function that reads a UDP socket of 127.0.0.1 in bursts and hands each on: "port N" tells which,
// "dropped N" how many packets the kernel has dropped there (SO_MEMINFO), "received" how many came to all. "slow N" lets
// the next batch take N ms in process(). Its argument says how many threads read one socket each.
#define _GNU_SOURCE
#include "commands.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BURST 32
#define PACKET_BYTES 256
#define RECEIVE_BYTES 65536
#define MEMINFO_DROPS 8 // SK_MEMINFO_DROPS

struct packet {
	uint8_t *data;
	uint32_t length;
	uint16_t segment;
};

static _Atomic uint64_t received, slow_ms;
static int sockets[8];

__attribute__((noinline)) uint16_t take(int socket, struct packet **packets, uint16_t count)
{
	struct mmsghdr messages[BURST] = {0};
	struct iovec places[BURST];
	for (int i = 0; i < count; i++) {
		places[i] = (struct iovec){packets[i]->data, PACKET_BYTES};
		messages[i].msg_hdr.msg_iov = &places[i];
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	int got = recvmmsg(socket, messages, count, MSG_DONTWAIT, NULL);
	for (int i = 0; i < got; i++)
		packets[i]->length = packets[i]->segment = (uint16_t)messages[i].msg_len;
	return got < 0 ? 0 : (uint16_t)got;
}

static void spend(uint64_t ns)
{
	struct timespec start, now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	while ((uint64_t)(now.tv_sec - start.tv_sec) * 1000000000 + (uint64_t)(now.tv_nsec - start.tv_nsec) < ns);
}

__attribute__((noinline)) void process(struct packet **packets, uint16_t count)
{
	uint64_t ms = atomic_exchange(&slow_ms, 0);
	for (int i = 0; i < count; i++)
		packets[i]->data[0] ^= 1;
	if (ms)
		spend(ms * 1000000);
}

__attribute__((noinline)) uint16_t give(int port, struct packet **packets, uint16_t count)
{
	(void)port;
	for (int i = 0; i < count; i++)
		packets[i]->data[1] ^= 1;
	return count;
}

static void *work(void *argument)
{
	int socket = *(int *)argument;
	static _Thread_local uint8_t bytes[BURST][PACKET_BYTES];
	struct packet rows[BURST], *packets[BURST];
	for (int i = 0; i < BURST; i++) {
		rows[i].data = bytes[i];
		packets[i] = &rows[i];
	}
	for (;;) {
		struct pollfd wanted = {socket, POLLIN, 0};
		poll(&wanted, 1, -1);
		uint16_t count = take(socket, packets, BURST);
		if (!count)
			continue;
		process(packets, count);
		give(0, packets, count);
		atomic_fetch_add(&received, count);
	}
	return NULL;
}

static int open_socket(void)
{
	int made = socket(AF_INET, SOCK_DGRAM, 0), bytes = RECEIVE_BYTES;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (made < 0 || bind(made, (struct sockaddr *)&address, sizeof(address)) ||
	    setsockopt(made, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)))
		exit(1);
	return made;
}

static const char *say(uint64_t number)
{
	static char text[32];
	snprintf(text, sizeof(text), "%lu", (unsigned long)number);
	return text;
}

static const char *tell_port(long index)
{
	struct sockaddr_in address = {0};
	socklen_t size = sizeof(address);
	getsockname(sockets[index & 7], (struct sockaddr *)&address, &size);
	return say(ntohs(address.sin_port));
}

static const char *tell_dropped(long index)
{
	uint32_t words[MEMINFO_DROPS + 1] = {0};
	socklen_t size = sizeof(words);
	if (getsockopt(sockets[index & 7], SOL_SOCKET, SO_MEMINFO, words, &size))
		exit(1);
	return say(words[MEMINFO_DROPS]);
}

static const char *tell_received(long index)
{
	(void)index;
	return say(received);
}

static const char *be_slow(long ms)
{
	slow_ms = (uint64_t)ms;
	return "right";
}

int main(int argc, char **argv)
{
	static const struct command commands[] = {
	    {"port", tell_port},
	    {"dropped", tell_dropped},
	    {"received", tell_received},
	    {"slow", be_slow},
	    {0},
	};
	int count = argc > 1 ? atoi(argv[1]) : 1;
	for (int i = 0; i < count && i < 8; i++) {
		pthread_t thread;
		sockets[i] = open_socket();
		if (pthread_create(&thread, NULL, work, &sockets[i]))
			return 1;
	}
	return obey(commands);
}
