#!/usr/bin/env bash
#SBATCH --cpus-per-task=4
#SBATCH --mem=2G
#SBATCH --requeue
#SBATCH --open-mode=append
# Runs dsmoe convert with its arguments as a job of submit.sh. dsmoe replaces the shell, and so Slurm's SIGTERM, at the
# time limit or before a preemption, reaches it: the journal is left, and the requeued job goes on from there.
export GOMAXPROCS=$SLURM_CPUS_PER_TASK
exec "${DSMOE:-dsmoe}" convert "$@"
