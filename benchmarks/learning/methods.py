"""Success of every estimator and objective on the demo's task, with the same initial weights and budget.

Each seed has one warm-up, shorter than the demo's; from it each method makes the same number of updates with the same
number of episodes, and is evaluated on the same held-out tasks. Additional requirements of a method (a critic, a tree,
gold calls, a second model, updates of the critic before those of the policy) are in its row of `METHODS` and in the
table. Learning rates are the demo's except in four rows: the table shows whether a method works, not which is best.

`--write FOLDER` writes the table to FOLDER/methods.md and its figures to FOLDER/raw/methods.json.
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
from publishing import add_output_options, publish
from warm_up import train_warm_up
from whetstone.algorithms import ADVANTAGES, OBJECTIVES
from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.reporting import Progress
from whetstone.training import train

COMMON = [
    "ablations=null",
    "supervised=null",
    "policy.tiny=null",
    "reinforcement.checkpoint_interval_steps=1000",
    "reinforcement.minibatches=2",
    "reinforcement.decay_fraction=0.5",
]
_WARM, _SUCCESS = ["critic={warmup_updates: 4}"], ["critic={loss: success}"]
_SLOWER = ["reinforcement.learning_rate=3.0e-4"]
"""Learning rate of estimators without a baseline per task; the demo's rate assumes one."""
_GRADIENT, _FORKED = ["objective=policy_gradient"], ["rollout.strategy=random_branching"]
_CALLS, _THOUGHTS = ["reward=matched_calls"], ["reward=meta_reasoning"]
_ROLES, _UNREAD = ["role_tag=kind"], ["advantage=null"]
METHODS: dict[str, dict[str, list[str]]] = {
    "advantage": {
        **{name: [] for name in ADVANTAGES},
        "turn_gae": _WARM,
        "token_gae": _WARM,
        "one_step_td": ["critic={loss: success, warmup_updates: 4}"],
        "digirl": [*_SUCCESS, *_GRADIENT],
        "webrl": [*_SUCCESS, "objective=advantage_regression"],
        "archer": ["critic={warmup_updates: 8, learning_rate: 0.03}", *_GRADIENT, *_SLOWER],
        "mira": [*_WARM, *_CALLS],
        "spa": ["critic={warmup_updates: 6}", "advantage.grounding_weight=0.05"],
        "matchtir": _CALLS,
        "ui_s1": _CALLS,
        "toolpo": _CALLS,
        "hrpo": _CALLS,
        "rlvmr": _THOUGHTS,
        "portool": [*_FORKED, *_THOUGHTS],
        "tree_ps": _FORKED,
        "arpo": _FORKED,
        "remax": ["rollout.strategy=greedy_baseline", *_SLOWER],
        "reinforce_plus_plus": _SLOWER,
        "mars": _ROLES,
        "dr_mas": _ROLES,
        "role_normalized": _ROLES,
        "oprl": ["implicit_prm={}"],
    },
    "objective": {
        **{name: [] for name in OBJECTIVES},
        "gspo": ["aggregation=sequence_mean"],
        "gmpo": ["aggregation=sequence_mean"],
        "sapo": ["aggregation=sequence_mean"],
        "supervised": ["credit_filters=[rejection]", *_UNREAD],
        "dpo": _UNREAD,
        "kto": _UNREAD,
        "step_dpo": [*_FORKED, *_UNREAD],
        "refuel": [*_FORKED, *_UNREAD],
        "on_policy_distillation": ["teacher.path=TEACHER"],
        "importance_weighted_distillation": ["teacher.path=TEACHER", *_UNREAD],
    },
    "beside": {
        "filters: void_turns": ["credit_filters=[void_turns]"],
        "filters: zero_variance": ["credit_filters=[zero_variance]"],
        "filters: overlong_filter": ["credit_filters=[overlong_filter]"],
        "filters: invalid_endings": ["credit_filters=[invalid_endings]"],
        "advantage transform: entropy_modulated": ["advantage_transforms=[entropy_modulated]"],
        "advantage transform: entropy_aware": ["advantage_transforms=[entropy_aware]"],
        "advantage transform: clip_cov": ["advantage_transforms=[{name: clip_cov, low: 0.1, fraction: 0.02}]"],
        "shaping: overlong": ["reward_shaping=[{name: overlong, limit: 140, buffer: 70, penalty: 0.5}]"],
        "shaping: gated": ["reward_shaping=[gated]", *_CALLS],
        "shaping: kl_penalty": ["advantage=reinforce_plus_plus", "reward_shaping=[kl_penalty]", *_SLOWER],
        "shaping: self_correction": ["reward_shaping=[{name: self_correction, weight: 1.0}]", *_CALLS],
        "aggregation: sequence_sum": ["aggregation=sequence_sum"],
        "aggregation: constant": ["aggregation={mode: constant, tokens: 100}"],
        "reinforcement.entropy": ["reinforcement.entropy={weight: 0.001, band: 0.2}"],
        "reinforcement.reference_kl (k3)": ["reinforcement.reference_kl=0.01", "reinforcement.reference_estimator=k3"],
        "reinforcement.imitation (fading)": [
            "reinforcement.imitation={weight: 0.5, final_weight: 0.05, decay_steps: 20, mixed: true}"
        ],
    },
}


def train_run(overrides: list[str], model: Path, folder: Path) -> dict[str, Any]:
    """Train a run and return success before and after, and the number of updates without a change."""
    summary = train(
        load_recipe("demo", [*COMMON, *overrides, f"policy.path={model}"]), folder, progress=Progress(quiet=True)
    )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "before": summary.before.success,
        "after": summary.after.success,
        "interval": summary.after.interval,
        "idle_updates": statistics.fmean(row["update/skipped_fraction"] for row in rows),
        "seconds_an_update": statistics.fmean(row["time/update"] for row in rows),
    }


def main() -> None:
    """Run all methods, print the table, and optionally write it."""
    parser = add_output_options(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=24)
    parser.add_argument("--tasks", type=int, default=12, help="tasks per update, with eight episodes each")
    parser.add_argument("--episodes", type=int, default=300, help="episodes per evaluation")
    parser.add_argument("--warm-up", type=int, default=360)
    parser.add_argument("--only", nargs="*", help="names of methods")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    all_methods = [(kind, name, more) for kind, methods in METHODS.items() for name, more in methods.items()]
    all_methods.sort(key=lambda each: each[1] != "group_relative")  # its final policy is the teacher of later methods
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(arguments.seeds):
            model = train_warm_up(seed, folder / f"warm-{seed}", f"supervised.steps={arguments.warm_up}")
            teacher = None
            for kind, method, more in all_methods:
                if arguments.only and method not in arguments.only and method != "group_relative":
                    continue
                run_dir = folder / "run"
                named = [f"{kind}={method}"] if kind != "beside" else []
                overrides = [
                    f"seed={seed}",
                    f"reinforcement.steps={arguments.updates}",
                    f"reinforcement.tasks_per_step={arguments.tasks}",
                    f"evaluation.episodes={arguments.episodes}",
                    *named,
                    *(each.replace("TEACHER", str(teacher)) for each in more),
                ]
                rows.append({"seed": seed, "kind": kind, "method": method, **train_run(overrides, model, run_dir)})
                if method == "group_relative":
                    teacher = (folder / f"teacher-{seed}").resolve()
                    checkpoint = latest_checkpoint(run_dir)
                    assert checkpoint is not None
                    shutil.copytree(checkpoint, teacher)
                shutil.rmtree(run_dir)
                print(rows[-1], file=sys.stderr, flush=True)
    publish(build_result(rows, arguments, began), format_page, arguments)


def build_result(rows: list[dict[str, Any]], arguments: argparse.Namespace, began: float) -> dict[str, Any]:
    """Return the result as one object."""
    methods: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = methods.setdefault(f"{row['kind']}: {row['method']}", {"before": [], "after": [], "idle_updates": []})
        for key in entry:
            entry[key].append(row[key])
    gains = {
        name: statistics.fmean(a - b for a, b in zip(entry["after"], entry["before"], strict=True))
        for name, entry in methods.items()
    }
    budget = {key: getattr(arguments, key) for key in ("seeds", "updates", "tasks", "episodes", "warm_up")}
    return {
        "name": "methods",
        "measured": {"runs": rows, "mean_gain": gains, "budget": budget},
        "ratios": {"share_that_gained": sum(round(gain, 6) > 0 for gain in gains.values()) / max(1, len(gains))},
        "goal": "every method gains",
        "bound": "the demo's learning rates in this number of updates",
        **circumstances(began),
    }


def format_page(result: dict[str, Any]) -> str:
    """Return the page with the table."""
    budget = result["measured"]["budget"]
    lines = [
        "# Every method on the demo's task",
        "",
        f"{budget['updates']} steps of {budget['tasks']} tasks with 8 episodes each, from the same weights, after",
        f"{budget['warm_up']} steps of warm-up; success on {budget['episodes']} held-out tasks, greedy, seed by seed.",
        "Rates are the demo's unless set otherwise: the table shows whether a method learns, not which is best.",
        "`make bench NAME=methods`.",
        "",
        "| method | before | after | mean gain | further settings |",
        "| --- | --- | --- | --- | --- |",
    ]
    by_method: dict[str, list[dict[str, Any]]] = {}
    for row in result["measured"]["runs"]:
        by_method.setdefault(f"{row['kind']}: {row['method']}", []).append(row)
    for name, rows in sorted(by_method.items()):
        before, after = (" ".join(f"{100 * row[key]:.0f}" for row in rows) for key in ("before", "after"))
        label = name.removeprefix("beside: ")
        gain, kind = 100 * result["measured"]["mean_gain"][name], rows[0]["kind"]
        settings = " ".join(f"`{each}`" for each in METHODS[kind][rows[0]["method"]]) if kind != "beside" else ""
        lines.append(f"| {label} | {before} | {after} | {gain:+.1f} | {settings} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
