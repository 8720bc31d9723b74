# SPDX-License-Identifier: Apache-2.0
"""Random C programs without undefined behaviour, for tests that compare them with and without probes.

Each `run` begins from the same state, so its checksum and the number of calls of each function are always the
same. The functions have what makes probing hard: more arguments than registers, structures by value and as
results, doubles, variable arguments, recursion, tail calls, loops to the start, switches, cold parts, alloca.
"""

from __future__ import annotations

import random

PRELUDE = """
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef unsigned long u64;
typedef struct { u64 a, b; } two;
typedef struct { u64 a[5]; double d; } large;
typedef struct { double d; unsigned f; } mixed;
static u64 state[64];
static unsigned fuel;
u64 (*volatile chosen)(u64, u64);
static inline u64 turn(u64 x, unsigned n) { n &= 63; return n ? (x << n) | (x >> (64 - n)) : x; }
static inline double small(u64 x) { return (double)(x & 0xffff); }
__attribute__((noinline, cold)) void rarely(u64 x) { state[x & 63] ^= x * 3; }
__attribute__((noinline, noreturn, cold)) void never(u64 x) { fprintf(stderr, "never %lx\\n", x); abort(); }
__attribute__((noinline)) u64 variable(unsigned n, ...)
{
	u64 sum = n;
	va_list list;
	va_start(list, n);
	for (unsigned i = 0; i < n; i++)
		sum = turn(sum, 7) + (i % 3 == 2 ? (u64)va_arg(list, double) : va_arg(list, u64));
	va_end(list);
	return sum;
}
"""

MAIN = """
int main(void)
{
	char line[64];
	puts("ready");
	fflush(stdout);
	for (;;) {
		ssize_t got = read(0, line, sizeof line - 1);
		if (got <= 0)
			return 0;
		line[got] = 0;
		u64 turns = strtoul(line, 0, 0), sum = 0;
		for (u64 i = 0; i < turns; i++) {
			for (unsigned k = 0; k < 64; k++)
				state[k] = (k + 1) * 0x9e3779b97f4a7c15u + i;
			fuel = %d;
			sum = turn(sum, 11) ^ run(i);
			for (unsigned k = 0; k < 64; k++)
				sum = turn(sum, 3) + state[k];
		}
		printf("%%lx\\n", sum);
		fflush(stdout);
	}
}
"""

KINDS = ("u64", "u64", "u64", "unsigned", "unsigned char", "double", "two", "large", "mixed", "long double")
RESULTS = ("u64", "u64", "u64", "unsigned", "two", "large", "mixed", "double", "long double", "void")
ATTRIBUTES = ("noinline", "noinline", "noinline, noclone", "noipa", "cold, noinline", "hot", "noinline, aligned(1)")


class _Writer:
    """Writes the functions in an order such that each calls only those before it, and itself."""

    def __init__(self, seed: int, functions: int) -> None:
        self.random = random.Random(seed)
        self.made: list[tuple[str, str, list[str]]] = []
        self.text: list[str] = []
        self.wanted = functions
        self.depth = 0

    def program(self) -> str:
        for number in range(self.wanted):
            self._function(number)
        plain = [name for name, result, kinds in self.made if result == "u64" and kinds == ["u64", "u64"]]
        body = [f"\tchosen = {name};\n\tsum ^= chosen(sum, x);" for name in plain[-2:]]
        body += [f"\tsum = turn(sum, 5) ^ {self._call(made)};" for made in self.made[-6:]]
        run = "u64 run(u64 x)\n{\n\tu64 sum = x, y = x + 1, z = 3;\n\t(void)y, (void)z;\n%s\n\treturn sum;\n}\n"
        return PRELUDE + "\n".join(self.text) + run % "\n".join(body) + MAIN % self.random.choice((200, 600))

    def _function(self, number: int) -> None:
        chance = self.random
        plain = chance.random() < 0.3
        result = "u64" if plain else chance.choice(RESULTS)
        count = chance.choice((0, 1, 1, 2, 2, 3, 4, 6, 7, 8, 12))
        kinds = ["u64", "u64"] if plain else [chance.choice(KINDS) for _ in range(count)]
        name = f"f{number}"
        words = ", ".join(f"{kind} p{i}" for i, kind in enumerate(kinds)) or "void"
        static = "static " if chance.random() < 0.5 else ""
        lines = [f"__attribute__(({chance.choice(ATTRIBUTES)})) {static}{result} {name}({words})", "{"]
        lines += ["\tu64 x = 1, y = 2, z = 3;"]
        lines += [f"\tx = turn(x, 9) + {self._number(kind, f'p{i}')};" for i, kind in enumerate(kinds)]
        if chance.random() < 0.7:
            early = self._result(result, "y")
            lines += [f"\tif (!fuel)\n\t\t{early}", "\tfuel--;"]
            for _ in range(chance.randrange(1, 7)):
                lines += self._statement(1)
            if chance.random() < 0.4 and fuelled(lines):
                lines += ["\tx += " + self._call((name, result, kinds)) + ";"]
        else:
            for _ in range(chance.randrange(0, 3)):
                lines += self._simple(1)
        self.made.append((name, result, kinds))
        tail = [made for made in self.made[:-1] if made[1] == result]
        if tail and chance.random() < 0.4:
            made = chance.choice(tail)
            call = self._plain_call(made)
            lines += ["\tstate[1] ^= y;", f"\t{call};\n\treturn;" if result == "void" else f"\treturn {call};", "}"]
        else:
            lines += ["\tstate[2] ^= z;", "\t" + self._result(result, "x ^ y"), "}"]
        self.text.append("\n".join(lines) + "\n")

    def _number(self, kind: str, value: str) -> str:
        return {
            "two": f"({value}.a ^ {value}.b)",
            "large": f"({value}.a[x % 5] + (u64){value}.d)",
            "mixed": f"((u64){value}.d + {value}.f)",
        }.get(kind, f"(u64){value}")

    def _value(self, kind: str, value: str) -> str:
        return {
            "two": f"((two){{{value}, x}})",
            "large": f"((large){{{{{value}, y, z, x, 5}}, small(x)}})",
            "mixed": f"((mixed){{small({value}), (unsigned)y}})",
            "double": f"small({value})",
            "long double": f"((long double)small({value}))",
        }.get(kind, f"({kind})({value})")

    def _result(self, kind: str, value: str) -> str:
        return "return;" if kind == "void" else f"return {self._value(kind, value)};"

    def _plain_call(self, made: tuple[str, str, list[str]]) -> str:
        name, _, kinds = made
        return f"{name}({', '.join(self._value(kind, self._term()) for kind in kinds)})"

    def _call(self, made: tuple[str, str, list[str]]) -> str:
        call = self._plain_call(made)
        kind = made[1]
        if kind == "void":
            return f"({call}, (u64)1)"
        return {
            "two": f"{call}.b",
            "large": f"{call}.a[1]",
            "mixed": f"(u64){call}.f",
        }.get(kind, f"(u64){call}")

    def _term(self) -> str:
        chance = self.random
        place = chance.randrange(64)
        return chance.choice(
            ("x", "y", "z", "x + y", f"x * {chance.randrange(1, 99)}", f"state[{place}]", f"turn(y, {place})", "~z")
        )

    def _simple(self, depth: int) -> list[str]:
        chance, tabs = self.random, "\t" * depth
        place = chance.randrange(64)
        return [
            tabs
            + chance.choice(
                (
                    f"x += {self._term()};",
                    f"y ^= {self._term()};",
                    f"z = z * 3 + {self._term()};",
                    f"state[{place}] += {self._term()};",
                    f"x = x > {self._term()} ? y : z;",
                    "state[x & 63] ^= z;",
                    f"memcpy(&state[{chance.randrange(32)}], &state[{chance.randrange(32, 48)}], 64);",
                    f"memset(&state[{chance.randrange(56)}], (int)y, {chance.randrange(1, 64)});",
                )
            )
        ]

    def _statement(self, depth: int) -> list[str]:
        chance, tabs = self.random, "\t" * depth
        kind = chance.randrange(12) if depth < 4 else chance.randrange(3)
        if kind < 2:
            return self._simple(depth)
        if kind < 5 and self.made:
            return [f"{tabs}x = turn(x, 5) ^ {self._call(chance.choice(self.made))};"]
        inner = [line for _ in range(chance.randrange(1, 3)) for line in self._statement(depth + 1)]
        if kind == 5:
            return [f"{tabs}if (({self._term()}) & {chance.choice((1, 3, 7))}) {{", *inner, f"{tabs}}}"]
        if kind == 6:
            name = f"i{depth}"
            head = f"for (unsigned {name} = 0; {name} < {chance.randrange(1, 4)}; {name}++)"
            return [f"{tabs}{head} {{", *inner, f"{tabs}}}"]
        if kind == 7:
            cases = []
            for number in range(chance.randrange(5, 9)):
                cases += [f"{tabs}case {number}:", *self._statement(depth + 1), f"{tabs}\tbreak;"]
            return [f"{tabs}switch (({self._term()}) % 11) {{", *cases, f"{tabs}}}"]
        if kind == 8:
            test = f"__builtin_expect((({self._term()}) & 255) == {chance.randrange(256)}, 0)"
            return [f"{tabs}if ({test}) {{", f"{tabs}\trarely(x);", *inner, f"{tabs}}}"]
        if kind == 9:
            return [f"{tabs}if (z == 0x123456789abcdef)", f"{tabs}\tnever(x);"]
        if kind == 10:
            count = chance.randrange(1, 12)
            words = [f"small({self._term()})" if i % 3 == 2 else f"(u64)({self._term()})" for i in range(count)]
            return [f"{tabs}y += variable({count}, {', '.join(words)});"]
        size = f"16 + (x & {chance.choice((15, 127))})"
        return [f"{tabs}{{", f"{tabs}\tvolatile char *room = __builtin_alloca({size});", f"{tabs}\troom[3] = (char)y;",
                f"{tabs}\tz += (unsigned char)room[3];", f"{tabs}}}"]  # fmt: skip


def fuelled(lines: list[str]) -> bool:
    """Whether the function stops calling itself when the fuel is used up."""
    return any("fuel--" in line for line in lines)


def random_program(seed: int, functions: int = 24) -> str:
    """A whole program. It says "ready", then answers each line with a number of runs by their checksum."""
    return _Writer(seed, functions).program()
