#!/usr/bin/env bash
# One process a GPU: training/launch.sh CONFIG.yaml [PROCESSES] [further words of `obsspec train`]
#
# On several machines, run it on each with NNODES, NODE_RANK and MASTER_ADDR (of the first) set.
set -euo pipefail
config=${1:?usage: training/launch.sh CONFIG.yaml [PROCESSES] [--set KEY=VALUE ...]}
processes=${2:-$(nvidia-smi --list-gpus 2>/dev/null | wc -l)}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec torchrun \
  --nproc-per-node "$processes" \
  --nnodes "${NNODES:-1}" \
  --node-rank "${NODE_RANK:-0}" \
  --master-addr "${MASTER_ADDR:-127.0.0.1}" \
  --master-port "${MASTER_PORT:-29500}" \
  --module obsspec_gym.cli train "$config" "${@:3}"
