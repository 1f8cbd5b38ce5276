#!/bin/bash
# One relbo run on several nodes of a SLURM cluster, one process for each GPU:
#     sbatch deploy/slurm.sh
# The same line starts it and goes on with it: --resume begins a run where there is none. A job that loses a node, or is
# preempted, is put back into the queue and goes on from the last checkpoint. One whose time is up is told so two minutes
# before, and saves; submit it again.
#SBATCH --job-name=relbo
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120

set -euo pipefail

# a folder that all nodes see
RUN=${RUN:?set RUN to a folder on a file system that all nodes share}
DATA=${DATA:-binarized-mnist}

srun --kill-on-bad-exit=1 relbo train --distributed --resume \
    --data "$DATA" --layers 200-200-200 --estimator vrs --rate 0.5 \
    --shards 16 --batch-size 3200 --epochs 100 --checkpoint-every 500 \
    --compilation-cache "$RUN-cache" --quiet --out "$RUN"
