#!/bin/sh
# Measure Whetstone on one GPU in at most ten minutes, without network.
#
#   benchmarks/speed/gpu/run.sh                          results in build/gpu/gpu.json, a table at the end
#   benchmarks/speed/gpu/run.sh --device cpu --small     the same parts in miniature, on a CPU
#   benchmarks/speed/gpu/run.sh --help                   all options
#
# Uses the first Python (3.11 or newer) that has PyTorch with a GPU, otherwise the first that has PyTorch; PYTHON=...
# names one. Packages that it lacks are installed from wheels in --wheels, into a separate folder;
# `python benchmarks/speed/gpu/carry.py` collects these wheels on a machine with network.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
check='import sys, torch; sys.exit(0 if sys.version_info >= (3, 11) and (sys.argv[1] == "any" or torch.cuda.is_available()) else 1)'
chosen=${PYTHON:-}
if [ -z "$chosen" ]; then
  for need in gpu any; do
    for one in "$root/.venv/bin/python" python3 python python3.13 python3.12 python3.11 /opt/*/bin/python3 /opt/*/.venv/bin/python3; do
      if command -v "$one" >/dev/null 2>&1 && "$one" -c "$check" "$need" >/dev/null 2>&1; then chosen=$one; break 2; fi
    done
  done
fi
if [ -z "$chosen" ]; then
  echo "run.sh: no Python of at least 3.11 has PyTorch; install it (make setup TORCH=...), or name one: PYTHON=/path/of/python3 $0" >&2
  exit 2
fi
exec "$chosen" "$here/run.py" "$@"
