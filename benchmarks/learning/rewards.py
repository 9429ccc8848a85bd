"""Claims of three published rewards, each against the reward that it is claimed to improve on.

- OTC: the reward of a right answer falls with its number of calls. Claim: fewer tool calls at equal success. Most
  questions here need no tool, and the warm-up taught its use.
- ToolRL: separate rewards for names, parameters and values of calls. Claim: learns where an exact-match reward is rare.
- G-RA: process rewards count only if the outcome is reached. Claim: robust where added rewards are exploited; here each
  successful call has a reward.

`--write FOLDER` writes the table to FOLDER/rewards.md and its figures to FOLDER/rewards.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from circumstances import circumstances
from publishing import add_output_options, publish
from warm_up import train_warm_up
from whetstone.evaluation.significance import t_interval
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

_SEEDS, _MARGIN = 8, 0.05
"""Number of seeds that a verdict needs, and the difference of success that counts as none."""
_RAN = "{name: executed_calls, weight: 0.5%s}"
CLAIMS: dict[str, dict[str, Any]] = {
    "OTC": {
        "world": [
            "tasks={source: 'reward_worlds:OptionalTool'}",
            "environment={tools: [pocket_calculator], max_turns: 4, max_calls_per_turn: 1}",
        ],
        "warm_up": 600,
        "updates": 80,
        "rewards": {"outcome": "exact_number", "otc": "{name: otc, outcome: exact_number, smooth: 1}"},
    },
    "ToolRL, sometimes right": {
        "world": [
            "tasks={source: 'reward_worlds:Bookings'}",
            "environment={tools: ['reward_worlds:book'], max_turns: 1, max_calls_per_turn: 1}",
            "rollout.max_new_tokens=64",
        ],
        "warm_up": 60,
        "updates": 150,
        "rewards": {"exact": "{name: tool_rl, match: exact}", "fine": "tool_rl"},
    },
    "ToolRL, rarely right": {
        "world": [
            "tasks={source: 'reward_worlds:Bookings', nights: 19}",
            "environment={tools: ['reward_worlds:book'], max_turns: 1, max_calls_per_turn: 1}",
            "rollout.max_new_tokens=64",
        ],
        "warm_up": 60,
        "updates": 150,
        "rewards": {"exact": "{name: tool_rl, match: exact}", "fine": "tool_rl"},
    },
    "G-RA": {
        "world": [
            "tasks={source: 'reward_worlds:OptionalTool', easy: 0.0, again: 0.4}",
            "environment={tools: [pocket_calculator], max_turns: 6, max_calls_per_turn: 1}",
        ],
        "warm_up": 240,
        "updates": 60,
        "rewards": {
            "outcome": "exact_number",
            "added": "{name: composed, terms: {correct: exact_number, ran: " + _RAN % "" + "}}",
            "gated": "{name: composed, terms: {correct: exact_number, ran: " + _RAN % ", gate: correct" + "}}",
            "gated, bounded": "{name: composed, terms: {correct: exact_number, ran: "
            + _RAN % ", gate: correct, high: 2"
            + "}}",
        },
    },
}
COMMON = [
    "ablations=null",
    "supervised=null",
    "policy.tiny=null",
    "reinforcement.checkpoint_interval_steps=1000",
    "reinforcement.decay_fraction=0.5",
]


def train_run(overrides: list[str], model: Path, folder: Path) -> dict[str, Any]:
    """Train a run and return its figures on held-out tasks before and after."""
    summary = train(
        load_recipe("demo", [*COMMON, *overrides, f"policy.path={model}"]), folder, progress=Progress(quiet=True)
    )
    figures: dict[str, Any] = {}
    for moment, evaluation in (("before", summary.before), ("after", summary.after)):
        figures |= {f"{key}_{moment}": getattr(evaluation, key) for key in ("success", "tool_calls", "turns")}
        figures[f"kinds_{moment}"] = {kind: rate.success for kind, rate in evaluation.kinds.items()}
    return figures


def main() -> None:
    """Run all rewards, print the table, and optionally write it."""
    parser = add_output_options(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=16, help="tasks per update, with eight trajectories each")
    parser.add_argument("--episodes", type=int, default=400, help="episodes per evaluation")
    parser.add_argument("--claims", nargs="*", choices=list(CLAIMS), default=list(CLAIMS))
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(arguments.seeds):
            for claim in arguments.claims:
                world, steps = CLAIMS[claim]["world"], CLAIMS[claim]["warm_up"]
                first = next(iter(CLAIMS[claim]["rewards"].values()))
                model = train_warm_up(
                    seed,
                    folder / f"{claim}-{seed}",
                    f"supervised.steps={steps}",
                    *_warm_up_settings(world),
                    f"reward={first}",
                )
                for reward, reward_settings in CLAIMS[claim]["rewards"].items():
                    overrides = [
                        f"seed={seed}",
                        f"reinforcement.steps={CLAIMS[claim]['updates']}",
                        f"reinforcement.tasks_per_step={arguments.tasks}",
                        f"evaluation.episodes={arguments.episodes}",
                        *world,
                        f"reward={reward_settings}",
                    ]
                    rows.append(
                        {"seed": seed, "claim": claim, "reward": reward, **train_run(overrides, model, folder / "run")}
                    )
                    shutil.rmtree(folder / "run")
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    publish(build_result(rows, arguments, began), format_page, arguments)


def _warm_up_settings(world: list[str]) -> list[str]:
    """Return the settings of an environment that a warm-up uses, which does not sample."""
    return [change for change in world if not change.startswith("rollout.")]


def build_result(rows: list[dict[str, Any]], arguments: argparse.Namespace, began: float) -> dict[str, Any]:
    """Return the result as one object."""
    budget = {key: getattr(arguments, key) for key in ("seeds", "tasks", "episodes")}
    budget["updates"] = {claim: CLAIMS[claim]["updates"] for claim in arguments.claims}
    ratios: dict[str, float] = {}
    for seed_rows in (_of(rows, "OTC"),):
        if seed_rows:
            plain, spared = (seed_rows[name] for name in ("outcome", "otc"))
            each = [
                a["tool_calls_after"] / max(b["tool_calls_after"], 1e-9) for a, b in zip(plain, spared, strict=True)
            ]
            ratios["calls of outcome over otc"] = statistics.median(each)
    return {
        "name": "rewards",
        "measured": {"runs": rows, "budget": budget},
        "ratios": ratios,
        "goal": "OTC: half the calls at equal success; ToolRL, G-RA: better than what they are compared with",
        "bound": "OTC: hard questions need one call each, a quarter of all",
        **circumstances(began),
    }


def _of(rows: list[dict[str, Any]], claim: str) -> dict[str, list[dict[str, Any]]]:
    own_rows = [row for row in rows if row["claim"] == claim]
    return {
        reward: [row for row in own_rows if row["reward"] == reward] for reward in {row["reward"] for row in own_rows}
    }


def format_page(result: dict[str, Any]) -> str:
    """Return the page with the table."""
    budget = result["measured"]["budget"]
    lines = [
        "# Effects of rewards on training",
        "",
        f"Updates: {', '.join(f'{claim} {updates}' for claim, updates in budget['updates'].items())}, of"
        f" {budget['tasks']} tasks with 8 trajectories each, from the same warmed-up weights. Success and tool",
        f"calls of an episode on {budget['episodes']} held-out tasks, greedy, seed by",
        "seed, followed by the mean difference to the first reward of the claim over seeds, with its 95 %",
        "interval (t distribution over seeds, paired). `make bench NAME=rewards`.",
        "",
        "| claim | reward | success before | after | difference (points) | calls before | after | difference |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = result["measured"]["runs"]
    for claim, settings in CLAIMS.items():
        by_reward = _of(rows, claim)
        for reward in settings["rewards"] if by_reward else ():
            own_rows, plain = by_reward[reward], by_reward[next(iter(settings["rewards"]))]
            cells = []
            for key, scale, digits in (("success", 100, 0), ("tool_calls", 1, 2)):
                for moment in ("before", "after"):
                    cells.append(" ".join(f"{scale * row[f'{key}_{moment}']:.{digits}f}" for row in own_rows))
                gaps = [scale * (a[f"{key}_after"] - b[f"{key}_after"]) for a, b in zip(own_rows, plain, strict=True)]
                cells.append("" if own_rows is plain else _interval(gaps, digits + 1))
            lines.append(f"| {claim} | {reward} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {settings}" for settings in verdicts(rows))]) + "\n"


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """Return the verdict of each claim from the figures."""
    lines = []
    otc = _of(rows, "OTC")
    if otc:
        calls, success = _gaps(otc, "otc", "outcome", "tool_calls"), _gaps(otc, "otc", "outcome", "success")
        share = 1 - statistics.fmean(r["tool_calls_after"] for r in otc["otc"]) / statistics.fmean(
            r["tool_calls_after"] for r in otc["outcome"]
        )
        keeps_success = all(abs(bound) <= _MARGIN for bound in _bounds(success))
        is_shown = share >= 0.5 and _bounds(calls)[1] < 0 and keeps_success
        verdict = "half the calls at equal success" if is_shown else "not shown"
        lines.append(
            f"OTC: {share:.0%} fewer tool calls than with plain outcomes ({_interval(calls, 3)} calls), success"
            f" {_interval([100 * gap for gap in success], 1)} points: {_with_enough_seeds(verdict, calls)}."
        )
    for claim in CLAIMS:
        by_reward = _of(rows, claim)
        if claim.startswith("ToolRL") and by_reward:
            lines.append(_better(claim, by_reward, "fine", "exact"))
        if claim == "G-RA" and by_reward:
            lines.append(_better(claim, by_reward, "gated", "added"))
            lines.append(_better(claim, by_reward, "gated, bounded", "added"))
            lines.append(_better("G-RA, what adding costs", by_reward, "outcome", "added"))
    return lines


def _better(claim: str, by_reward: dict[str, list[dict[str, Any]]], one: str, other: str) -> str:
    gaps = [100 * gap for gap in _gaps(by_reward, one, other, "success")]
    low, high = _bounds(gaps)
    verdict = "better" if low > 0 else "worse" if high < 0 else "cannot tell"
    if all(_gain(by_reward[reward]) <= 0 for reward in (one, other)):
        verdict = "not counted, since neither learns"
    return f"{claim}: {one} against {other}, {_interval(gaps, 1)} points: {_with_enough_seeds(verdict, gaps)}."


def _with_enough_seeds(verdict: str, gaps: Sequence[float]) -> str:
    """Return a verdict, or that there are too few seeds for one."""
    needs_seeds = len(gaps) < _SEEDS and verdict not in ("cannot tell", "not counted, since neither learns")
    return f"cannot tell with {len(gaps)} seeds (a verdict needs {_SEEDS})" if needs_seeds else verdict


def _gain(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean success after training less that before."""
    return statistics.fmean(row["success_after"] - row["success_before"] for row in rows)


def _gaps(by_reward: dict[str, list[dict[str, Any]]], one: str, other: str, key: str) -> list[float]:
    pairs = zip(by_reward[one], by_reward[other], strict=True)
    return [a[f"{key}_after"] - b[f"{key}_after"] for a, b in pairs]


def _bounds(gaps: list[float]) -> tuple[float, float]:
    low, high, _ = t_interval(gaps)
    return (low, high)


def _interval(gaps: list[float], digits: int) -> str:
    low, high = _bounds(gaps)
    mean = statistics.fmean(gaps)
    return f"{mean:+.{digits}f}" + (f" ({low:+.{digits}f} to {high:+.{digits}f})" if len(gaps) > 1 else "")


if __name__ == "__main__":
    main()
