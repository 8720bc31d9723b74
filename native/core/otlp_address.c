// SPDX-License-Identifier: Apache-2.0
// IP addresses as text (otlp_address.h).
#include "otlp_address.h"

enum { GROUPS = 8 };

static char *write_decimal(char *p, uint8_t value)
{
	if (value >= 100)
		*p++ = (char)('0' + value / 100);
	if (value >= 10)
		*p++ = (char)('0' + value / 10 % 10);
	*p++ = (char)('0' + value % 10);
	return p;
}

static char *write_group(char *p, uint32_t group)
{
	int shift = group > 0xfff ? 12 : group > 0xff ? 8 : group > 0xf ? 4 : 0;
	for (; shift >= 0; shift -= 4)
		*p++ = "0123456789abcdef"[group >> shift & 15];
	return p;
}

// The first longest run of at least two zero groups: its start, or GROUPS; its length in *length.
static int find_zeros(const uint32_t *groups, int *length)
{
	int best = GROUPS;
	*length = 1;
	for (int i = 0; i < GROUPS; i++) {
		int end = i;
		while (end < GROUPS && !groups[end])
			end++;
		if (end - i > *length) {
			best = i;
			*length = end - i;
		}
		if (end > i)
			i = end;
	}
	return best;
}

static char *write_v6(char *p, const uint8_t *bytes)
{
	uint32_t groups[GROUPS];
	for (int i = 0; i < GROUPS; i++)
		groups[i] = (uint32_t)bytes[2 * i] << 8 | bytes[2 * i + 1];
	int length;
	int zeros = find_zeros(groups, &length);
	for (int i = 0; i < GROUPS; i++) {
		if (i == zeros) {
			*p++ = ':';
			i += length - 1;
			if (i == GROUPS - 1)
				*p++ = ':';
			continue;
		}
		if (i)
			*p++ = ':';
		p = write_group(p, groups[i]);
	}
	return p;
}

uint32_t nfp_address_format(const uint8_t *bytes, uint8_t version, char *text)
{
	char *p = text;
	if (version == 6)
		return (uint32_t)(write_v6(p, bytes) - text);
	for (int i = 0; i < 4; i++) {
		if (i)
			*p++ = '.';
		p = write_decimal(p, bytes[i]);
	}
	return (uint32_t)(p - text);
}
