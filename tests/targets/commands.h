// SPDX-License-Identifier: Apache-2.0
// How test targets are driven: one command with a count on each line of standard input, one line of answer.
// All know "close_descriptor N": the file descriptor N.
#ifndef NFPROBE_TEST_COMMANDS_H
#define NFPROBE_TEST_COMMANDS_H
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct command {
	const char *name;
	const char *(*run)(long count); // the answer
};

static inline int obey(const struct command *commands)
{
	char line[128], name[64];
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		long count = 0;
		if (sscanf(line, "%63s %ld", name, &count) < 1)
			return 2;
		if (strcmp(name, "close_descriptor") == 0) {
			puts(close((int)count) == 0 ? "right" : "wrong");
			continue;
		}
		const struct command *command = commands;
		while (command->name && strcmp(command->name, name) != 0)
			command++;
		puts(command->name ? command->run(count) : "unknown command");
	}
	return 0;
}
#endif
