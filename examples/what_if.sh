#!/usr/bin/env bash
# What if there was less memory? Answers from a recording, on a simulated GPU: no GPU is needed.
#
#   examples/what_if.sh [RECORDING]
#
# A recording of your own job: penstock run --engine explicit --budget ALL-IT-NEEDS --trace run.pstrace -- python train.py
# The oracle knows the future. What it cannot do nobody can.
set -euo pipefail
recording=${1:-testdata/traces/gpt2m.tsv.gz}

for ratio in 1.25 1.5 2 3; do
	for policy in penstock oracle; do
		penstock simulate --trace "$recording" --ratio "$ratio" --engine explicit --policy "$policy" --json |
			python3 -c '
import json, sys
r = json.load(sys.stdin)
print("{:>5}x  {policy:9} {:5.1f} GiB  {iteration_seconds:.3f} s an iteration, {compute_seconds:.3f} s of it computing".format(sys.argv[1], r["budget_bytes"] / 2**30, **r))
' "$ratio"
	done
done
