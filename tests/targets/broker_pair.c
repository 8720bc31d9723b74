// SPDX-License-Identifier: Apache-2.0
// Publisher and subscriber of an MQTT broker in one thread: publishes messages at an even pace, and takes the time from
// before the send of each until it has been received. Usage: broker_pair PORT COUNT GAP_NS FILE; FILE gets a u64 for
// each message, its nanoseconds. What is sent are whole packets of MQTT 3.1.1 with a short topic, quality of service 0.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_BYTES 13 // first byte, length, "\0\1t", number
#define PATIENCE_NS 5000000000ull

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void exchange(int client, const char *sent, size_t bytes, size_t answer_bytes)
{
	char answer[64];
	if (send(client, sent, bytes, 0) != (ssize_t)bytes)
		fail("send");
	if (recv(client, answer, answer_bytes, MSG_WAITALL) != (ssize_t)answer_bytes)
		fail("recv");
}

static int open_client(uint16_t port, char name)
{
	struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port)};
	int client = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
	where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (client < 0 || connect(client, (struct sockaddr *)&where, sizeof(where)))
		fail("connect");
	setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	char hello[] = "\x10\x0d\0\4MQTT\4\2\0\0\0\1?";
	hello[14] = name;
	exchange(client, hello, 15, 4);
	return client;
}

// Takes what has been received; returns how many messages are whole now.
static size_t receive(int subscriber, unsigned char *pending, size_t *bytes, size_t room, uint64_t *took,
                      const uint64_t *sent, size_t count)
{
	ssize_t got = recv(subscriber, pending + *bytes, room - *bytes, MSG_DONTWAIT);
	uint64_t now = now_ns();
	size_t whole = 0;
	if (got <= 0)
		return 0;
	*bytes += (size_t)got;
	for (; (whole + 1) * MESSAGE_BYTES <= *bytes; whole++) {
		uint64_t number;
		memcpy(&number, pending + whole * MESSAGE_BYTES + 5, sizeof(number));
		if (number >= count)
			exit(4);
		took[number] = now - sent[number];
	}
	*bytes -= whole * MESSAGE_BYTES;
	memmove(pending, pending + whole * MESSAGE_BYTES, *bytes);
	return whole;
}

static void run(int publisher, int subscriber, size_t count, uint64_t gap_ns, uint64_t *sent, uint64_t *took)
{
	static unsigned char pending[1 << 16];
	unsigned char message[MESSAGE_BYTES] = {0x30, MESSAGE_BYTES - 2, 0, 1, 't'};
	size_t bytes = 0, received = 0;
	uint64_t due = now_ns();
	for (uint64_t number = 0; received < count;) {
		uint64_t now = now_ns();
		if (number < count && now >= due) {
			memcpy(message + 5, &number, sizeof(number));
			due = now + gap_ns;
			sent[number++] = now_ns();
			if (send(publisher, message, sizeof(message), 0) != sizeof(message))
				fail("send");
			continue;
		}
		uint64_t wait_ns = number < count ? due - now : PATIENCE_NS;
		struct timespec wait = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
		struct pollfd readable = {.fd = subscriber, .events = POLLIN};
		int ready = ppoll(&readable, 1, &wait, NULL);
		if (ready == 0 && number == count)
			exit(5); // a message is missing
		if (ready > 0)
			received += receive(subscriber, pending, &bytes, sizeof(pending), took, sent, count);
	}
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	uint16_t port = (uint16_t)atoi(argv[1]);
	size_t count = strtoul(argv[2], NULL, 10);
	uint64_t *sent = calloc(count, sizeof(*sent)), *took = calloc(count, sizeof(*took));
	if (!sent || !took || !count)
		return 2;
	prctl(PR_SET_TIMERSLACK, 1);
	int subscriber = open_client(port, 's'), publisher = open_client(port, 'p');
	exchange(subscriber, "\x82\x06\0\1\0\1t", 8, 5);
	run(publisher, subscriber, count, strtoull(argv[3], NULL, 10), sent, took);
	FILE *file = fopen(argv[4], "wb");
	if (!file || fwrite(took, sizeof(*took), count, file) != count || fclose(file))
		fail(argv[4]);
	return 0;
}
