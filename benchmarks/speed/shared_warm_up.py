"""Reuse of a warm-up: `whetstone compare` of six methods with one warm-up, against six separate runs.

Seconds are CPU seconds of the commands with their start, so that other load does not count. Both ways must end with the
same weights, otherwise the benchmark fails.

    python -m benchmarks shared_warm_up --write

Prints a table, or one JSON object with `--json`; `--write` stores both in benchmarks/results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from circumstances import circumstances
from whetstone.record.checkpoint import latest_checkpoint

METHODS = ("dr-grpo", "rloo", "gspo", "gmpo", "cispo", "opo")
SMALL = (
    "policy.tiny.hidden_size=64", "policy.tiny.intermediate_size=128", "supervised.steps=100", "reinforcement.steps=3",
    "reinforcement.tasks_per_step=4", "evaluation.episodes=20", "ablations=null",
)  # fmt: skip
RESULTS = Path(__file__).parents[1] / "results"


def measure_cpu_seconds(*words: str) -> float:
    """Run a command and return its CPU seconds.

    Raises:
        SystemExit: The command failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "whetstone.cli.main", *words], check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"whetstone {' '.join(words)}: {done.stderr.strip()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def weights(run: Path) -> str:
    """Return a digest of the final weights of a run."""
    checkpoint = latest_checkpoint(run)
    assert checkpoint is not None
    return hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()


def measure_both(folder: Path) -> dict[str, Any]:
    """Measure both ways."""
    shared = measure_cpu_seconds(
        "compare", "demo", f"with={','.join(METHODS)}", *SMALL, "--seeds", "1", "--output-dir", str(folder / "shared"),
        "--json",
    )  # fmt: skip
    separate = {
        name: measure_cpu_seconds("train", "demo", f"with={name}", *SMALL, "--run-dir", str(folder / name), "--json")
        for name in METHODS
    }
    shared_weights = {weights(path.parent) for path in (folder / "shared" / "runs").glob("*/recipe.yaml")}
    different = [name for name in METHODS if weights(folder / name) not in shared_weights]
    if different:
        sys.exit(f"{', '.join(different)}: other weights than the same method in compare")
    return {"shared": shared, "alone": separate, "alone in all": sum(separate.values())}


def table(result: dict[str, Any]) -> str:
    """Return the table as Markdown."""
    ratio = result["alone in all"] / result["shared"]
    return "\n".join(
        [
            "| | seconds of the processor |",
            "| --- | --: |",
            f"| six runs, each with its warm-up | {result['alone in all']:.0f} |",
            f"| `whetstone compare` of the six | {result['shared']:.0f} |",
            "",
            f"{ratio:.2f} times as fast, and every method ends with the same weights, to the last bit.",
        ]
    )


def main() -> None:
    """Run both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="store the result in benchmarks/results")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = measure_both(Path(folder))
    report = {"name": "shared_warm_up", "measured": result, "settings": list(SMALL), **circumstances(began)}
    if arguments.write:
        (RESULTS / "raw" / "shared_warm_up.json").write_text(json.dumps(report, indent=1) + "\n")
        note = f"`{' '.join(SMALL)}`; `python -m benchmarks shared_warm_up --write` writes this page again."
        (RESULTS / "shared_warm_up.md").write_text(f"# A warm-up shared by six methods\n\n{table(result)}\n\n{note}\n")
    print(json.dumps(report) if arguments.json else table(result))


if __name__ == "__main__":
    main()
