#!/usr/bin/env bash
# Where should each allocation of a job lie? A plan, made from a recording. No GPU is needed to make it.
#
#   examples/plan.sh [RECORDING] [PLAN]
#
# The job follows it from its first allocation on, as long as it allocates as it did then:
#
#   PENSTOCK_PLAN=plan.json penstock run --engine none -- python train.py
#
# A recording can be one of `penstock run --trace`, a PyTorch memory snapshot (.pickle) or an RMM log (.csv).
set -euo pipefail
recording=${1:-testdata/traces/gpt2m.tsv.gz}
plan=${2:-plan.json}

penstock report fragmentation "$recording"                             # what was lost to fragmentation
penstock plan --trace "$recording" --time "${SECONDS_TO_SEARCH:-20}s" --out "$plan" # how little it can be
