// SPDX-License-Identifier: Apache-2.0
// Sender and receiver of a network function between two interfaces, in one thread: sends UDP frames at an even pace and
// takes the time from before the send of each until it has been received. Usage: frame_pair FROM TO COUNT GAP_NS FILE;
// with a gap of 0 the frames are sent as fast as it goes. FILE gets a u64 for each frame: its nanoseconds, 0: it was
// not received.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEADERS_BYTES 42 // Ethernet, IPv4, UDP
#define FRAME_BYTES 64
#define LAST_NS 200000000ull // how long to wait for the last ones
#define BUFFER_BYTES (8 << 20)

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

static int open_socket(const char *interface)
{
	int opened = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_IP)), bytes = BUFFER_BYTES;
	struct sockaddr_ll where = {.sll_family = AF_PACKET,
	                            .sll_protocol = htons(ETH_P_IP),
	                            .sll_ifindex = (int)if_nametoindex(interface)};
	if (opened < 0 || !where.sll_ifindex || bind(opened, (struct sockaddr *)&where, sizeof(where)))
		fail(interface);
	setsockopt(opened, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes));
	return opened;
}

static void make_frame(unsigned char *frame)
{
	static const unsigned char ethernet[] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0};
	static const unsigned char ip[] = {
	    0x45, 0, 0, FRAME_BYTES - 14, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 1, 0, 2};
	static const unsigned char udp[] = {4, 0, 0, 53, 0, FRAME_BYTES - 34, 0, 0};
	memset(frame, 0, FRAME_BYTES);
	memcpy(frame, ethernet, sizeof(ethernet));
	memcpy(frame + 14, ip, sizeof(ip));
	memcpy(frame + 34, udp, sizeof(udp));
}

// Takes one frame if there is one; returns whether.
static int receive(int receiver, uint64_t *took, const uint64_t *sent, size_t count)
{
	unsigned char frame[2048];
	uint64_t number;
	ssize_t bytes = recv(receiver, frame, sizeof(frame), MSG_DONTWAIT);
	uint64_t now = now_ns();
	if (bytes < HEADERS_BYTES + (ssize_t)sizeof(number))
		return bytes > 0;
	memcpy(&number, frame + HEADERS_BYTES, sizeof(number));
	if (number < count && sent[number] && !took[number])
		took[number] = now - sent[number];
	return 1;
}

static void run(int sender, int receiver, size_t count, uint64_t gap_ns, uint64_t *sent, uint64_t *took)
{
	unsigned char frame[FRAME_BYTES];
	make_frame(frame);
	uint64_t due = now_ns(), number = 0, last = due;
	while (number < count || now_ns() < last + LAST_NS) {
		uint64_t now = now_ns();
		if (number < count && now >= due) {
			memcpy(frame + HEADERS_BYTES, &number, sizeof(number));
			due = gap_ns ? now + gap_ns : 0;
			sent[number++] = last = now_ns();
			if (send(sender, frame, sizeof(frame), 0) != sizeof(frame))
				fail("send");
			if (gap_ns)
				continue;
		}
		while (receive(receiver, took, sent, count))
			if (number < count && now_ns() >= due)
				break;
		if (number < count && (!gap_ns || now_ns() >= due))
			continue;
		uint64_t wait_ns = number < count ? due - now_ns() : LAST_NS;
		struct timespec wait = {0, (long)(wait_ns < LAST_NS ? wait_ns : 0)};
		struct pollfd readable = {.fd = receiver, .events = POLLIN};
		if (number < count || now_ns() < last + LAST_NS)
			ppoll(&readable, 1, number < count ? &wait : &(struct timespec){0, 1000000}, NULL);
	}
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	size_t count = strtoul(argv[3], NULL, 10);
	uint64_t *sent = calloc(count, sizeof(*sent)), *took = calloc(count, sizeof(*took));
	if (!sent || !took || !count)
		return 2;
	prctl(PR_SET_TIMERSLACK, 1);
	run(open_socket(argv[1]), open_socket(argv[2]), count, strtoull(argv[4], NULL, 10), sent, took);
	FILE *file = fopen(argv[5], "wb");
	if (!file || fwrite(took, sizeof(*took), count, file) != count || fclose(file))
		fail(argv[5]);
	return 0;
}
