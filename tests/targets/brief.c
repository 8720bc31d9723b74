// SPDX-License-Identifier: Apache-2.0
// A program that lives for milliseconds and says how it was started:
//   brief work COUNT STATUS    calls work() COUNT times, writes the sum, exits with STATUS
//   brief die SIGNAL           calls work() once and kills itself
//   brief state                writes what it has inherited: parent's death signal, blocked and ignored signals
//   brief signals              tells and counts SIGINT and SIGTERM until a line comes, writes the counts
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static volatile sig_atomic_t interrupts, terminations;

__attribute__((noinline)) static long work(long value)
{
	__asm__ volatile("" : "+r"(value));
	return value * 3 + 1;
}

// Runs before main, and after the first instruction of the program.
__attribute__((constructor)) static void begin(void)
{
	work(0);
}

__attribute__((noinline)) static long repeat(long count)
{
	long sum = 0;
	for (long i = 0; i < count; i++)
		sum += work(i);
	return sum;
}

static void count(int number)
{
	const char *text = number == SIGINT ? "interrupt\n" : "termination\n";
	if (number == SIGINT)
		interrupts++;
	else
		terminations++;
	if (write(STDOUT_FILENO, text, strlen(text)) < 0)
		_exit(1);
}

static int count_signals(void)
{
	char line[64];
	struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	puts("ready");
	fflush(stdout);
	if (read(STDIN_FILENO, line, sizeof(line)) < 0)
		return 1;
	printf("%d interrupts, %d terminations\n", (int)interrupts, (int)terminations);
	return 0;
}

static int show_state(void)
{
	char line[256];
	int death_signal = 0;
	prctl(PR_GET_PDEATHSIG, &death_signal);
	printf("death signal %d\n", death_signal);
	FILE *status = fopen("/proc/self/status", "r");
	while (status && fgets(line, sizeof(line), status))
		if (strncmp(line, "SigBlk", 6) == 0 || strncmp(line, "SigIgn", 6) == 0 ||
		    strncmp(line, "TracerPid", 9) == 0)
			fputs(line, stdout);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 3 && strcmp(argv[1], "work") == 0) {
		printf("%ld\n", repeat(atol(argv[2])));
		return atoi(argv[3]);
	}
	if (argc > 2 && strcmp(argv[1], "die") == 0) {
		work(1);
		raise(atoi(argv[2]));
		pause();
	}
	if (argc > 1 && strcmp(argv[1], "state") == 0)
		return show_state();
	return argc > 1 && strcmp(argv[1], "signals") == 0 ? count_signals() : 2;
}
