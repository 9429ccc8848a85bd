"""What does it win to judge apart from where episodes are played? RollArt 2512.22560 claims it of rewards on machines
of their own, with episodes that do not wait for one another.

The demo behind its warm-up, with a calculator that takes a while and a judge that holds up its process for as long as
it judges (one that waits without holding anything up would win nothing). Three runs from the same weights: everything
in one process, update by update; the same on Ray with updates that run ahead; and that with two workers who do nothing
but judge.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.rewards.answers.exact_number import exact_number
from whetstone.training import train
from whetstone.trajectory import Score, Task, Trajectory

RESULTS = Path(__file__).parent / "results"
JUDGE_SECONDS = 0.03
COMMON = [
    "policy.tiny=null",
    "supervised=null",
    "ablations=null",
    "environment.tools=[asynchronous:pocket_calculator]",
    "environment.tool_timeout_seconds=60",
    "reward=rewards_apart:judged_slowly",
    "rollout.max_in_flight=384",
    "reinforcement.tasks_per_step=16",
    "reinforcement.learning_rate=5.0e-4",
    "reinforcement.checkpoint_every=1000",
]
AHEAD = ["reinforcement.admit_ahead=2", "reinforcement.max_staleness=4", "correction={name: masked, high: 5}"]
ON_RAY = ["scale=local-ray", "scale.environment_workers=1", "scale.start_seconds=250"]
WAYS = {
    "one process, update by update": [],
    "Ray, ahead, judged where it is played": [*AHEAD, *ON_RAY],
    "Ray, ahead, two workers judge": [*AHEAD, *ON_RAY, "scale.reward_workers=2"],
}
SKIPPED = 1
"""Updates in front that do not count."""


async def judged_slowly(trajectory: Trajectory, task: Task) -> Score:
    """The number is right; whoever asks is held up meanwhile."""
    time.sleep(JUDGE_SECONDS)  # noqa: ASYNC251 - that is what it is for
    return await exact_number(trajectory, task)


def learned(way: str, steps: int, policy: Path, folder: Path, episodes: int) -> dict[str, Any]:
    """Seconds a step, and success."""
    overrides = [
        *COMMON,
        *WAYS[way],
        f"policy.path={policy}",
        f"reinforcement.steps={steps}",
        f"evaluation.episodes={episodes}",
    ]
    rows: list[Any] = []
    summary = train(load_recipe("demo", overrides), folder, on_metrics=rows.append, progress=Progress(quiet=True))
    ends = [row["time/elapsed_seconds"] for row in rows]
    return {
        "way": way,
        "seconds_a_step": (ends[-1] - ends[SKIPPED - 1]) / (len(ends) - SKIPPED),
        "engine": statistics.fmean(row["time/engine"] for row in rows),
        "learner": statistics.fmean(row["time/update"] for row in rows),
        "staleness_max": max(row["policy/staleness_max"] for row in rows),
        "before": summary.before.success,
        "success": summary.after.success,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--policy", type=Path, required=True, help="the demo behind its warm-up")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=50, help="of each evaluation")
    parser.add_argument("--folder", type=Path, help="where runs are kept, and counted if they are there already")
    parser.add_argument("--write", action="store_true", help="write rewards_apart.json and rewards_apart.md")
    arguments = parser.parse_args()
    began, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for number, way in enumerate(WAYS):
            kept = folder / f"{number}.json"
            if not kept.is_file():
                shutil.rmtree(folder / str(number), ignore_errors=True)
                found = learned(way, arguments.steps, arguments.policy, folder / str(number), arguments.episodes)
                kept.write_text(json.dumps(found))
            rows.append(json.loads(kept.read_text()))
            print(rows[-1], file=sys.stderr, flush=True)
    whole, ahead, apart = (row["seconds_a_step"] for row in rows)
    said = {
        "name": "rewards_apart",
        "measured": {"runs": rows, "judge_seconds": JUDGE_SECONDS, "steps": arguments.steps},
        "ratios": {"vs_one_process": whole / apart, "of_judging_apart": ahead / apart},
        "goal": "1.35 to 2.05 of one process, which RollArt reports end to end",
        "bound": "engine and learner share the cores: a step takes no less than both together",
        **circumstances(began),
    }
    if arguments.write:
        (RESULTS / "rewards_apart.json").write_text(json.dumps(said, indent=1) + "\n")
        (RESULTS / "rewards_apart.md").write_text(page(said))
    print(json.dumps(said) if arguments.json else page(said))


def page(said: dict[str, Any]) -> str:
    """The results for a reader."""
    measured, ratios = said["measured"], said["ratios"]
    lines = [
        "# Judged apart from where episodes are played",
        "",
        f"`python benchmarks/rewards_apart.py --policy FOLDER --steps {measured['steps']} --write`, "
        f"{said['machine']['cores']} cores, beside other work: the demo with a calculator that takes half a second in "
        f"the median, and a judge that holds up its process for {1000 * measured['judge_seconds']:.0f} ms an episode; "
        "128 episodes an update.",
        "",
        "| way | s a step | learner, s | staleness at most | success |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in measured["runs"]:
        lines.append(
            f"| {row['way']} | {row['seconds_a_step']:.2f} | {row['learner']:.2f} | {row['staleness_max']:.0f} | "
            f"{row['before']:.0%} → {row['success']:.0%} |"
        )
    lines += [
        "",
        f"Running ahead with judges apart takes {ratios['vs_one_process']:.2f} times less than one process, and "
        f"{ratios['of_judging_apart']:.2f} times less than running ahead with the judge among the episodes. RollArt, "
        "arXiv:2512.22560, reports 1.35 to 2.05 times end to end, on GPUs.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
