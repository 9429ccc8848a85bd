"""Is the same work done once? `whetstone compare` of six methods, which train one warm-up, against six runs alone.

Seconds are of the processor, of the commands with their starts, so that what runs beside them does not count. Both ways
must come to the same weights, or it fails.

    python benchmarks/shared_warm_up.py --write

Prints a table, or one JSON object with `--json`; `--write` keeps both among benchmarks/results.
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
RESULTS = Path(__file__).parent / "results"


def spent(*words: str) -> float:
    """Seconds of the processor of a command.

    Raises:
        SystemExit: It failed.
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
    """A digest of what a run came to."""
    checkpoint = latest_checkpoint(run)
    assert checkpoint is not None
    return hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()


def measured(folder: Path) -> dict[str, Any]:
    """Both ways."""
    shared = spent(
        "compare", "demo", f"with={','.join(METHODS)}", *SMALL, "--seeds", "1", "--output-dir", str(folder / "shared"),
        "--json",
    )  # fmt: skip
    alone = {
        name: spent("train", "demo", f"with={name}", *SMALL, "--run-dir", str(folder / name), "--json")
        for name in METHODS
    }
    made = {weights(path.parent) for path in (folder / "shared" / "runs").glob("*/recipe.yaml")}
    different = [name for name in METHODS if weights(folder / name) not in made]
    if different:
        sys.exit(f"{', '.join(different)}: other weights than the same method in compare")
    return {"shared": shared, "alone": alone, "alone in all": sum(alone.values())}


def table(told: dict[str, Any]) -> str:
    """As Markdown."""
    ratio = told["alone in all"] / told["shared"]
    return "\n".join(
        [
            "| | seconds of the processor |",
            "| --- | --: |",
            f"| six runs, each with its warm-up | {told['alone in all']:.0f} |",
            f"| `whetstone compare` of the six | {told['shared']:.0f} |",
            "",
            f"{ratio:.2f} times as fast, and every method ends with the same weights, to the last bit.",
        ]
    )


def main() -> None:
    """Run both, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="keep the result among benchmarks/results")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        told = measured(Path(folder))
    report = {"name": "shared_warm_up", "measured": told, "settings": list(SMALL), **circumstances(began)}
    if arguments.write:
        (RESULTS / "shared_warm_up.json").write_text(json.dumps(report, indent=1) + "\n")
        said = f"`{' '.join(SMALL)}`; `python benchmarks/shared_warm_up.py --write` makes this again."
        (RESULTS / "shared_warm_up.md").write_text(f"# A warm-up six methods share\n\n{table(told)}\n\n{said}\n")
    print(json.dumps(report) if arguments.json else table(told))


if __name__ == "__main__":
    main()
