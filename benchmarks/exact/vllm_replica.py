"""vLLM as an engine replica: mismatch of log-probs, weight transfer and success.

    python -m benchmarks vllm_replica --python vllm/bin/python --policy FOLDER

A replica on Ray starts vLLM and sends it the policy and its new weights; the log-prob of every sampled token is
compared with the policy's. The policy is one after its warm-up; success before and after is on the same tasks, sampled
by vLLM.
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

RESULTS = Path(__file__).parents[1] / "results"


class PlacementProgress(Progress):
    """Progress that prints the placement."""

    def say(self, line: str) -> None:
        """Print a line to standard error."""
        print(line, file=sys.stderr, flush=True)


def page(result: dict[str, Any], episodes: int) -> str:
    """Return the page of the results."""
    figures = result["measured"]
    before, after = figures["success"]
    return "\n".join(
        [
            "# vLLM as an engine replica on Ray",
            "",
            "`python -m benchmarks vllm_replica --python PYTHON --policy FOLDER --write`, "
            f"{result['machine']['cores']} cores: the demo after its warm-up, one environment worker, one "
            "replica that starts vLLM, which computes on one core.",
            "",
            "| quantity | value |",
            "| --- | --- |",
            f"| updates | {figures['steps']}, of {figures['cost_per_step/episodes']:.0f} episodes and "
            f"{figures['cost_per_step/sampled_tokens']:.0f} tokens |",
            f"| difference of log-probs between vLLM and the policy, nats | "
            f"mean {figures['sampler/mismatch_mean']:.2g}, maximum {figures['sampler/mismatch_max']:.2g} |",
            f"| new weights in vLLM, checked | after {figures['scale/transfer_seconds']:.2f} s |",
            f"| a step | {figures['time/rollout']:.1f} s of sampling, {figures['time/update']:.1f} s of the update |",
            f"| success, {episodes} greedy episodes by vLLM | {before:.0%} → {after:.0%} |",
            "",
        ]
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--python", required=True, help="interpreter of an environment with vLLM")
    parser.add_argument("--policy", type=Path, required=True, help="the demo after its warm-up")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=50, help="episodes per evaluation")
    parser.add_argument("--core", help="core of vLLM; its busy threads starve next to other work")
    parser.add_argument(
        "--write", action="store_true", help="write raw/vllm_replica.json and vllm_replica.md into results"
    )
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
            load_recipe("demo", overrides),
            Path(folder) / "run",
            on_metrics=rows.append,
            progress=PlacementProgress(quiet=True),
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
    figures = {
        "steps": len(rows),
        "success": [summary.before.success, summary.after.success],
        "mismatch_of_each_step": [row["sampler/mismatch_mean"] for row in rows],
        **{name: statistics.median(row[name] for row in rows) for name in names if name in rows[0]},
    }
    result = {
        "name": "vllm_replica",
        "measured": figures,
        "ratios": {},
        "goal": "a run to its end whose tokens are worth to the policy what vLLM says, new weights in every step",
        "bound": "",
        **circumstances(began),
    }
    if arguments.write:
        (RESULTS / "raw" / "vllm_replica.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "vllm_replica.md").write_text(page(result, arguments.episodes))
    print(json.dumps(result) if arguments.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
