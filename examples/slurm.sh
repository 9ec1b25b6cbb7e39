#!/usr/bin/env bash
# A job of several GPUs of one node under Slurm: sbatch examples/slurm.sh. Needs GPUs.
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=16
#SBATCH --mem=200G
#SBATCH --time=01:00:00
set -euo pipefail

# The budgets hold for each process. The explicit engine pins host memory, which counts against --mem: leave some of it
# to the program. Without --host-budget the processes of the node share 80 % of what is available.
srun penstock run --budget 24GiB --host-budget 80GiB --report "report-$SLURM_JOB_ID.json" -- \
	torchrun --standalone --nproc-per-node "$SLURM_GPUS_ON_NODE" train.py
