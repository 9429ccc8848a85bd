"""Does a real vLLM serve as an engine replica? It is started by the replica that Ray placed, and given the policy and
its new weights; every token it drew is compared with what the policy itself thinks of it.

    python benchmarks/vllm_replica.py --python vllm/bin/python --policy FOLDER

The policy is one behind its warm-up; success before and after is of the same tasks, drawn by vLLM both times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

RESULTS = Path(__file__).parent / "results"


class Told(Progress):
    """Says what is placed."""

    def say(self, line: str) -> None:
        """On the error stream."""
        print(line, file=sys.stderr, flush=True)


def page(said: dict[str, Any], episodes: int) -> str:
    """The results for a reader."""
    found = said["measured"]
    before, after = found["success"]
    return "\n".join(
        [
            "# A real vLLM behind a replica on Ray",
            "",
            f"`python benchmarks/vllm_replica.py --python PYTHON --policy FOLDER --write`, {said['machine']['cores']} "
            "cores: the demo behind its warm-up, one environment worker, one replica that starts "
            "vLLM, which computes on one core.",
            "",
            "| what | found |",
            "| --- | --- |",
            f"| updates | {found['steps']}, of {found['cost_per_step/episodes']:.0f} episodes and "
            f"{found['cost_per_step/sampled_tokens']:.0f} tokens |",
            f"| what vLLM says a token is worth, from what the policy says, nats | "
            f"{found['sampler/mismatch_mean']:.2g} in the mean, {found['sampler/mismatch_max']:.2g} at most |",
            f"| new weights in vLLM, checked | after {found['scale/transfer_seconds']:.2f} s |",
            f"| a step | {found['time/rollout']:.1f} s of sampling, {found['time/update']:.1f} s of the update |",
            f"| success, {episodes} greedy episodes by vLLM | {before:.0%} → {after:.0%} |",
            "",
        ]
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--python", required=True, help="the interpreter of an environment with vLLM")
    parser.add_argument("--policy", type=Path, required=True, help="the demo behind its warm-up")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=50, help="of each evaluation")
    parser.add_argument("--core", help="on which vLLM computes; its threads spin, and starve beside other work")
    parser.add_argument("--write", action="store_true", help="write vllm_replica.json and vllm_replica.md into results")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows: list[Any] = []
    bound = f", environment: {{VLLM_CPU_OMP_THREADS_BIND: '{arguments.core}'}}" if arguments.core is not None else ""
    overrides = [
        "policy.tiny=null",
        f"policy.path={arguments.policy}",
        "supervised=null",
        "ablations=null",
        f"reinforcement.steps={arguments.steps}",
        "reinforcement.learning_rate=1.0e-3",
        "reinforcement.tasks_per_step=8",
        "rollout.group_size=4",
        f"evaluation.episodes={arguments.episodes}",
        f"engine={{name: vllm, python: '{arguments.python}'{bound}}}",
        "scale=local-ray",
        "scale.environment_workers=1",
        "scale.start_timeout_seconds=900",
    ]
    with tempfile.TemporaryDirectory() as folder:
        summary = train(
            load_recipe("demo", overrides), Path(folder) / "run", on_metrics=rows.append, progress=Told(quiet=True)
        )
    names = (
        "sampler/mismatch_mean",
        "sampler/mismatch_max",
        "time/rollout",
        "time/update",
        "scale/transfer_seconds",
        "scale/replica_utilization",
        "scale/replicas_died",
        "cost_per_step/episodes",
        "cost_per_step/sampled_tokens",
    )
    found = {
        "steps": len(rows),
        "success": [summary.before.success, summary.after.success],
        "mismatch_of_each_step": [row["sampler/mismatch_mean"] for row in rows],
        **{name: statistics.median(row[name] for row in rows) for name in names if name in rows[0]},
    }
    said = {
        "name": "vllm_replica",
        "measured": found,
        "ratios": {},
        "goal": "a run to its end whose tokens are worth to the policy what vLLM says, new weights in every step",
        "bound": "",
        **circumstances(began),
    }
    if arguments.write:
        (RESULTS / "vllm_replica.json").write_text(json.dumps(said, indent=1) + "\n")
        (RESULTS / "vllm_replica.md").write_text(page(said, arguments.episodes))
    print(json.dumps(said) if arguments.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
