// SPDX-License-Identifier: Apache-2.0
// A million random schedules of two readings against a model of the kernel: what is judged to be valid is the true
// count, and what was not disturbed is valid. A disturbance (switch, migration, reprogramming, error state) may come
// between any two steps of the protocol.
#include "check.h"
#include "counters.h"
#include <string.h>

enum { COUNTERS = 6 };

struct model {
	uint64_t count[COUNTERS]; // true
	uint64_t base[COUNTERS]; // what the hardware shows beside that: changes with each programming
	uint32_t lock[COUNTERS];
	uint32_t index[COUNTERS]; // 0: not counting
	int width;
	int disturbed;
	unsigned long chance; // in a thousand steps
};

static unsigned long state = 4101842887655102017;

static void disturb(struct model *model)
{
	int away = next_random(&state) % 3 == 0;
	for (int i = 0; i < COUNTERS; i++) {
		model->lock[i] += 2;
		model->base[i] = next_random(&state);
		model->index[i] = away ? 0 : 1 + (uint32_t)(next_random(&state) % 4) + (i % 2 ? 1u << 30 : 0);
	}
	model->disturbed = 1;
}

static void step(struct model *model)
{
	for (int i = 0; i < COUNTERS; i++)
		model->count[i] += next_random(&state) % 50;
	if (next_random(&state) % 1000 < model->chance)
		disturb(model);
}

static uint64_t hardware(const struct model *model, int i)
{
	uint64_t raw = model->count[i] + model->base[i];
	return model->width == 64 ? raw : raw & ((1ull << model->width) - 1);
}

// As read_counter in native/probe/counter.c.
static uint32_t read_one(struct model *model, int i, uint32_t *check, uint32_t *off, uint64_t *when)
{
	uint32_t lock = model->lock[i];
	step(model);
	uint32_t index = model->index[i];
	step(model);
	if (!index)
		return *off = NFP_COUNTERS_OFF, 0;
	uint32_t low = (uint32_t)hardware(model, i);
	*when = model->count[i];
	step(model);
	if (model->lock[i] != lock || lock & 1)
		*off = NFP_COUNTERS_OFF;
	*check += lock;
	return low;
}

static void read_all(struct model *model, struct nfp_readings *readings, uint32_t count, uint64_t *when)
{
	*readings = (struct nfp_readings){0};
	for (uint32_t pair = 0; pair < (count + 1) / 2; pair++) {
		struct nfp_record record = {.sp = 4096};
		uint32_t check = 0, off = 0, low[2] = {0};
		for (uint32_t i = 2 * pair; i < count && i < 2 * pair + 2; i++)
			low[i % 2] = read_one(model, (int)i, &check, &off, &when[i]);
		record.value = low[0] | (uint64_t)low[1] << 32;
		record.tag = (NFP_COUNTERS + pair) << NFP_KIND_SHIFT;
		record.tag |= ((check & ~(uint32_t)NFP_COUNTERS_OFF) | off) & NFP_FUNCTION_MASK;
		nfp_readings_take(readings, &record);
	}
}

static int run_schedule(uint64_t *disturbed)
{
	static const int widths[] = {40, 48, 64};
	struct model model = {.width = widths[next_random(&state) % 3], .chance = next_random(&state) % 40};
	struct nfp_readings entry, end;
	uint64_t before[COUNTERS] = {0}, after[COUNTERS] = {0};
	uint32_t count = 1 + (uint32_t)(next_random(&state) % COUNTERS), differences[COUNTERS];
	disturb(&model); // programmed
	model.disturbed = 0;
	if (next_random(&state) % 8 == 0) // close to the end of its range
		for (int i = 0; i < COUNTERS; i++)
			model.base[i] = UINT64_MAX - next_random(&state) % 100;
	int away = !model.index[0];
	read_all(&model, &entry, count, before);
	for (unsigned long i = next_random(&state) % 10; i > 0; i--)
		step(&model);
	read_all(&model, &end, count, after);
	int valid = nfp_readings_judge(&entry, &end, 1000, differences);
	for (uint32_t i = 0; valid && i < count; i++)
		CHECK(differences[i] == after[i] - before[i]);
	CHECK(valid || model.disturbed || away);
	*disturbed += (uint64_t)model.disturbed;
	return valid;
}

static void test_schedules(unsigned long schedules)
{
	uint64_t valid = 0, disturbed = 0;
	for (unsigned long i = 0; i < schedules; i++)
		valid += (uint64_t)run_schedule(&disturbed);
	CHECK(valid > schedules / 4 && disturbed > schedules / 4);
	printf("%lu schedules, %lu valid, %lu disturbed\n", schedules, (unsigned long)valid,
	       (unsigned long)disturbed);
}

static void test_judge(void)
{
	uint32_t differences[COUNTERS];
	struct nfp_readings entry = {.low = {0xfffffff0, 5}, .check = {42}, .pairs = 1}, end = entry;
	end.low[0] = 0x10;
	CHECK(nfp_readings_judge(&entry, &end, 100, differences) && differences[0] == 0x20);
	CHECK(!nfp_readings_judge(&entry, &end, (1ull << 32) / NFP_COUNTS_PER_TICK + 1,
	                          differences)); // may have wrapped
	end.check[0] = 44;
	CHECK(!nfp_readings_judge(&entry, &end, 100, differences));
	entry.check[0] = end.check[0] = 42 | NFP_COUNTERS_OFF;
	CHECK(!nfp_readings_judge(&entry, &end, 100, differences));
	entry.check[0] = end.check[0] = 42;
	end.pairs = 2; // given another number of counters meanwhile
	CHECK(!nfp_readings_judge(&entry, &end, 100, differences));
	entry.pairs = end.pairs = 0;
	CHECK(!nfp_readings_judge(&entry, &end, 100, differences));
}

// Readings that belong to another record, or that are not whole.
static void test_take(void)
{
	struct nfp_readings readings = {0};
	struct nfp_record first = {1, (uint32_t)NFP_COUNTERS << NFP_KIND_SHIFT, 100};
	struct nfp_record second = {2, (uint32_t)(NFP_COUNTERS + 1) << NFP_KIND_SHIFT, 100};
	nfp_readings_take(&readings, &second);
	CHECK(readings.pairs == 0);
	nfp_readings_take(&readings, &first);
	nfp_readings_take(&readings, &second);
	CHECK(readings.pairs == 2 && readings.low[2] == 2 && readings.sp == 100);
	nfp_readings_take(&readings, &first);
	CHECK(readings.pairs == 1);
	second.sp = 200; // of a signal handler
	nfp_readings_take(&readings, &second);
	CHECK(readings.pairs == 0);
}

// Room is made for what is open at a time, not for what a session counts in all.
static void test_room(void)
{
	static struct nfp_call rows[5000];
	struct nfp_counted_calls calls = {0};
	struct nfp_log log = {.items = rows, .count = 5000};
	struct nfp_readings readings = {.sp = 8, .pairs = 1};
	nfp_counted_enter(&calls, &readings, &log, 0, 8); // open to the end
	for (uint32_t i = 0; i < 1000000; i++) {
		readings = (struct nfp_readings){.sp = 8, .pairs = 1};
		nfp_counted_enter(&calls, &readings, &log, 1, 8);
		CHECK(calls.last && rows[1].thread == calls.last);
		nfp_counted_deliver(&calls, &rows[1], 1);
	}
	CHECK(calls.capacity == 1024 && calls.given.count == 1000000);
	for (uint32_t i = 1; i < 5000; i++) {
		readings = (struct nfp_readings){.sp = 8, .pairs = 1};
		nfp_counted_enter(&calls, &readings, &log, i, 8);
	}
	calls.given.count = 0;
	for (uint32_t i = 0; i < 5000; i++)
		nfp_counted_deliver(&calls, &rows[i], i);
	CHECK(calls.capacity >= 5000 && calls.capacity <= 16384 && calls.given.count == 5000);
	nfp_counted_deinit(&calls);
}

int main(int count, char **arguments)
{
	test_room();
	test_judge();
	test_take();
	test_schedules(searches(count, arguments, 1000000));
	return 0;
}
