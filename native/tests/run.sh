#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the C tests of the data core with sanitizers and runs them; prints one line per run. Needs gcc with
# libasan, libubsan and libtsan. Called by `make test`; takes no arguments.
set -euo pipefail
cd "$(dirname "$0")"
core=../core
sources=("$core"/{drain,counters,tail_sampled,table,calltree,batch,emit,handover,barrier,packet,message,topics,match,share,stamps,pipeline,statistics,framerows}.c "$core"/arch/x86_64/{instruction,opcodes,vectors,codescan,realigned}.c)
encoder=("$core"/otlp*.c "$core"/clock.c)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

run() { # NAME SANITIZERS TEST.c
	gcc -std=gnu11 -O1 -g -Wall -Wextra -Werror -I"$core" -I.. -fsanitize="$2" \
		-fno-sanitize-recover=all -o "$build/$1" "$3" "${sources[@]}" "${encoder[@]}" -pthread
	local said
	said=$("$build/$1")
	echo "$2: $said"
}

run_ring_space() { # of the probe library, with a short end of a lap to step through
	gcc -std=gnu11 -O1 -g -Wall -Wextra -Werror -I"$core" -I.. -I../probe -fsanitize=undefined \
		-fno-sanitize-recover=all -DNFP_RING_SLACK_BYTES=256 -o "$build/ring_space" test_ring_space.c \
		../probe/{ring_space,rings,counter}.c "$core"/drain.c
	echo "undefined: $("$build/ring_space")"
}

run_snapshot() { # of the probe library
	gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -I.. -I../probe -fsanitize=address,undefined \
		-fno-sanitize-recover=all -o "$build/snapshot" test_snapshot.c ../probe/snapshot.c
	echo "address,undefined: $("$build/snapshot")"
}

run_owner() { # of the probe library
	gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -I.. -I../probe -fsanitize=address,undefined \
		-fno-sanitize-recover=all -o "$build/owner" test_owner.c ../probe/owner.c
	echo "address,undefined: $("$build/owner")"
}

run_numbered() { # of the probe library
	gcc -std=gnu11 -O1 -g -Wall -Wextra -Werror -I.. -I../probe -fsanitize=address,undefined \
		-fno-sanitize-recover=all -o "$build/numbered" test_numbered.c ../probe/numbered.c
	echo "address,undefined: $("$build/numbered")"
}

run_pending() { # of the probe library
	gcc -std=gnu11 -O1 -g -Wall -Wextra -Werror -I.. -I../probe -fsanitize=address,undefined \
		-fno-sanitize-recover=all -o "$build/pending" test_pending.c ../probe/numbered.c
	echo "address,undefined: $("$build/pending")"
}

run_queue() { # of the probe library
	gcc -std=gnu11 -O1 -g -Wall -Wextra -Werror -I.. -I../probe -fsanitize=address,undefined \
		-fno-sanitize-recover=all -o "$build/queue" test_queue.c
	echo "address,undefined: $("$build/queue")"
}

run_thread_set() { # of the core, on processes
	gcc -std=gnu11 -O1 -g -Wall -Wextra -Werror -I"$core" -I.. -o "$build/thread_set" test_thread_set.c \
		"$core"/{thread_set,patch_process,ptrace,change,address_space}.c "$core"/arch/x86_64/signal_frame.c -pthread
	echo "plain: $("$build/thread_set")"
}

run_runs() {
	gcc -std=gnu11 -O1 -g -Wall -Wextra -Werror -I"$core" -fsanitize=address,undefined -fno-sanitize-recover=all \
		-o "$build/runs" test_runs.c "$core"/{runs,change}.c
	echo "address,undefined: $("$build/runs")"
}

run_shared() {
	gcc -std=gnu11 -O1 -g -Wall -Wextra -Werror -I"$core" -I.. -fsanitize=address,undefined \
		-fno-sanitize-recover=all -o "$build/shared" test_shared_fuzz.c "${sources[@]}" \
		"$core"/{sweep,mailbox,address_space,descriptor}.c -pthread
	echo "address,undefined: $("$build/shared")"
}

run_signal_frame() {
	gcc -std=gnu11 -O1 -g -Wall -Wextra -Werror -I"$core" -I.. -fsanitize=address,undefined \
		-fno-sanitize-recover=all -o "$build/signal_frame" test_signal_frame.c "$core"/change.c \
		"$core"/arch/x86_64/signal_frame.c
	echo "address,undefined: $("$build/signal_frame")"
}

run_worst() { # not with sanitizers: it compares times
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -I"$core" -I.. -o "$build/worst" test_worst.c \
		contents_good.c attacks_{calls,batches,packets}.c "${sources[@]}"
	echo "none: $("$build/worst")"
}

run ring-thread thread test_ring.c
run ring-address address,undefined test_ring.c
run_ring_space
run_snapshot
run_owner
run_numbered
run_pending
run_queue
run_thread_set
run_runs
run counters address,undefined test_counters.c
run digest address,undefined test_digest.c
run fuzz address,undefined test_fuzz.c
run_shared
run_signal_frame
run framerows address,undefined test_framerows.c
run codescan address,undefined test_codescan.c
run otlp-fuzz address,undefined test_otlp_fuzz.c
run_worst
