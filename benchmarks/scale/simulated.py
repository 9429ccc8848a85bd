"""Accuracy of the simulator: predicted against measured step times of complete training runs.

The demo's untrained model in an environment with random latency (log-normal). Three runs without latency determine the
rates: decode steps by batch, updates by tokens, and the rest of a step. From only these rates the simulator predicts
the seconds per step of other runs, with other latencies, numbers of concurrent episodes, bounds and lengths. The error
of each prediction is reported.

Note:
    Runs are noisy. The page shows the standard deviation of simulated runs over seeds next to each prediction.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from circumstances import circumstances
from whetstone.chat import Message, user
from whetstone.environments import Observation, StepResult
from whetstone.inference.forward import SlotForward
from whetstone.inference.local_engine import LocalEngine
from whetstone.recipe import load_recipe
from whetstone.record import stored_lines
from whetstone.reporting import Progress
from whetstone.scaling.simulation import simulate_run
from whetstone.scaling.simulation_scenario import EngineRates, EpisodeShape, LearnerRates, LognormalSpread, Scenario
from whetstone.training import train
from whetstone.trajectory import Score, Task, Trajectory

RESULTS = Path(__file__).parents[1] / "results"
SIGMA, GROUPS, GROUP = 0.7, 8, 4
SKIPPED, SEEDS = 2, 5
UNCOUNTED = 200
"""Initial engine steps that are excluded."""
STEPS = "steps.json"
"""File of the engine steps in the folder of a run."""
COMMON = [
    "ablations=null",
    "supervised=null",
    "reward=simulated:parity",
    f"rollout.group_size={GROUP}",
    # an untrained model rarely ends a turn: a digit ends it after about fifteen tokens
    "rollout.max_new_tokens=160",
    "rollout.stop_strings=['1', '2', '3', '4', '5', '7']",
    "policy.tiny.context_length=1024",
    f"reinforcement.tasks_per_step={GROUPS}",
    "reinforcement.checkpoint_interval_steps=1000",
    "evaluation.episodes=2",
    "reinforcement.max_mismatch_kl=.inf",
]


@dataclass(frozen=True, slots=True)
class Setting:
    """One run."""

    turns: int = 3
    seconds: float = 0.0
    """Mean seconds of a step of the environment."""
    places: int = 32
    ahead: int = 0
    bound: int = 0

    @property
    def name(self) -> str:
        """Return a description of the setting in one line."""
        bounds = f"{self.ahead} ahead, bound {self.bound}" if self.ahead else "synchronous"
        return f"{self.turns} turns, answers of {self.seconds:g} s, {self.places} at once, {bounds}"


FITTED = (
    Setting(turns=2, places=4),
    Setting(turns=3, places=32),
    Setting(turns=3, places=96, ahead=1, bound=1),
)
"""Settings without latency. The last has as many episodes in flight as asynchronous runs, because KV caches that exceed
the processor's cache cost more per sequence."""
HELD_OUT = (
    Setting(seconds=0.2),
    Setting(seconds=0.2, places=8),
    Setting(seconds=1.0),
    Setting(turns=5, seconds=0.5),
    Setting(seconds=0.2, places=96, ahead=1, bound=1),
    Setting(seconds=0.5, places=96, ahead=1, bound=2),
    Setting(seconds=1.0, places=96, ahead=2, bound=4),
    Setting(seconds=1.0, places=24, ahead=2, bound=4),
    Setting(turns=2, seconds=1.5, places=128, ahead=3, bound=6),
)


class SlowWorld:
    """Environment with random latency and a fixed number of turns."""

    def __init__(self, *, turns: int = 3, seconds: float = 0.0) -> None:
        self.turns, self.seconds, self.left = turns, seconds, turns
        self.numbers = random.Random()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Return the prompt of the task."""
        self.numbers, self.left = random.Random(f"{task.id} {seed}"), self.turns
        return Observation((user(task.prompt),))

    async def step(self, action: Message) -> StepResult:
        """Return the next observation after a random delay."""
        if self.seconds:
            await asyncio.sleep(self.numbers.lognormvariate(math.log(self.seconds) - SIGMA**2 / 2, SIGMA))
        self.left -= 1
        return StepResult(Observation((user("go on"),)), terminated=self.left == 0)

    async def close(self) -> None:
        """Release nothing."""


async def parity(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 if the sum of the sampled token ids is odd, so that gradients are not 0."""
    return Score(float(sum(sum(turn.action.ids) for turn in trajectory.turns) % 2), success=True)


def play(setting: Setting, updates: int, folder: Path) -> None:
    """Train a run."""
    overrides = [
        *COMMON,
        "environment={name: 'simulated:SlowWorld', max_turns: 8}",
        f"environment.turns={setting.turns}",
        f"environment.seconds={setting.seconds}",
        f"rollout.max_in_flight={setting.places}",
        f"reinforcement.steps={updates}",
    ]
    if setting.ahead:
        ahead = (f"admit_ahead={setting.ahead}", f"max_staleness={setting.bound}")
        overrides += [*(f"reinforcement.{bound}" for bound in ahead), "importance_correction={name: masked, high: 5}"]
    with record_steps() as steps:
        train(load_recipe("demo", overrides), folder, progress=Progress(quiet=True))
    (folder / STEPS).write_text(json.dumps(steps))


Step = tuple[float, int, int, int]
"""Engine step: seconds, prompt tokens, decoded sequences, KV slots that attention reads."""


@contextlib.contextmanager
def record_steps() -> Iterator[list[Step]]:
    """Record the engine steps within the block."""
    steps: list[Step] = []
    count = LocalEngine._count

    def counted(self: LocalEngine, **more: float) -> None:
        if "busy_seconds" in more:
            read, drawn, rows = int(more["prefill_tokens"]), int(more["decode_tokens"]), 0
            if drawn and isinstance(self._forward, SlotForward):
                cache = self._forward.cache
                # copied rows cost as much as three times as many
                rows = 3 * len(cache.chosen) if cache.span is None else cache.span.stop - cache.span.start
            steps.append((more["busy_seconds"], read, drawn, rows))
        count(self, **more)

    LocalEngine._count = counted  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        LocalEngine._count = count  # type: ignore[method-assign]


def measure_run(setting: Setting, folder: Path) -> dict[str, Any]:
    """Return the seconds of a run's steps with their breakdown, without the first and those without sampling."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ends = [row["time/elapsed_seconds"] for row in rows]
    last = len(rows) - (setting.ahead + 1 if setting.ahead else 0)  # later steps sample nothing new
    lengths = [ends[k] - ends[k - 1] for k in range(SKIPPED, last)]
    counted = rows[SKIPPED:last]
    rest = [s - r["time/rollout"] - r["time/update"] for s, r in zip(lengths, counted, strict=True)]
    lines = stored_lines(folder)
    turn_lengths = [len(turn["action"]["ids"]) for line in lines for turn in line["turns"]]
    read = [[len(turn["context"]["ids"]) for turn in line["turns"]] for line in lines]
    return {
        "seconds": statistics.fmean(lengths),
        "each": [round(length, 4) for length in lengths],
        "rollout": statistics.fmean(row["time/rollout"] for row in counted),
        "update": statistics.fmean(row["time/update"] for row in counted),
        "engine": statistics.fmean(row["time/generation"] for row in counted),
        "tokens": statistics.fmean(row["update/computed_tokens"] for row in counted),
        "between": statistics.fmean(max(0.0, each) for each in rest),
        "turn_tokens": statistics.fmean(turn_lengths),
        "lengths": turn_lengths[:: max(1, len(turn_lengths) // 200)],
        "turns": len(turn_lengths) / max(1, len(lines)),
        "prompt_tokens": statistics.fmean(turns[0] for turns in read if turns),
        "answer_tokens": statistics.fmean(count for turns in read for count in turns[1:]),
        "staleness": statistics.fmean(row["policy/staleness_mean"] for row in counted),
    }


@dataclass(frozen=True, slots=True)
class Fitted:
    """Rates that the runs without latency determine."""

    step_seconds: float
    step_seconds_per_sequence: float
    step_seconds_per_row: float
    pass_seconds: float
    read_seconds_per_token: float
    turn_seconds: float
    """Seconds of the run's process per turn."""
    prompt_tokens: float
    answer_tokens: float
    update_seconds: float
    update_seconds_per_token: float
    between_seconds: float
    turn_tokens: tuple[float, ...]
    """Sampled lengths of turns."""


def scenario(setting: Setting, fitted: Fitted, tokens: float, *, updates: int, seed: int) -> Scenario:
    """Return the simulated scenario of a setting.

    Args:
        tokens: Tokens per update.
    """
    answer = LognormalSpread(setting.seconds, SIGMA)
    return Scenario(
        engine=EngineRates(
            1,
            fitted.step_seconds,
            fitted.step_seconds_per_sequence,
            step_seconds_per_row=fitted.step_seconds_per_row,
            prefill_seconds=fitted.turn_seconds,  # they share an interpreter
            prefill_seconds_per_token=fitted.read_seconds_per_token,
            pass_seconds=fitted.pass_seconds,
            max_sequences=256,
        ),
        episode=EpisodeShape(
            turns=LognormalSpread(setting.turns),
            prompt_tokens=LognormalSpread(fitted.prompt_tokens),
            turn_tokens=LognormalSpread(0, values=fitted.turn_tokens),
            observation_tokens=LognormalSpread(fitted.answer_tokens),
            tool_seconds=answer,
            last_tool_seconds=answer,
        ),
        learner=LearnerRates(
            fitted.update_seconds + fitted.update_seconds_per_token * tokens, 0.0, fitted.between_seconds
        ),
        groups_per_update=GROUPS,
        group_size=GROUP,
        max_in_flight=setting.places,
        admit_ahead=setting.ahead,
        max_staleness=setting.bound,
        take_turns=True,  # engine and learner share one thread
        updates=updates,
        skip=SKIPPED,
        seed=seed,
    )


def fit(runs: dict[Setting, dict[str, Any]], steps: list[Step]) -> Fitted:
    """Fit the rates by least squares.

    Args:
        runs: Runs without latency.
        steps: Engine steps of these runs, from `record_steps`.
    """
    decode_steps = np.array([step for step in steps if step[2] and not step[1]], dtype=float)
    step, each_sequence, each_row = _fit_rates(
        decode_steps[:, 0], np.ones(len(decode_steps)), decode_steps[:, 2], decode_steps[:, 3]
    )
    passes = np.array([step for step in steps if step[1]], dtype=float)
    decodes = passes[:, 2] > 0
    prefill_seconds = passes[:, 0] - decodes * (step + each_sequence * passes[:, 2] + each_row * passes[:, 3])
    passing, each_read = _fit_rates(prefill_seconds, np.ones(len(passes)), passes[:, 1])
    fixed, per_token = _fit_rates(
        np.array([run["update"] for run in runs.values()]),
        np.ones(len(runs)),
        np.array([run["tokens"] for run in runs.values()]),
    )
    turns = [GROUPS * GROUP * run["turns"] for run in runs.values()]
    process_seconds = [
        (run["rollout"] - run["engine"]) / count for run, count in zip(runs.values(), turns, strict=True)
    ]
    return Fitted(
        step_seconds=step,
        step_seconds_per_sequence=each_sequence,
        step_seconds_per_row=each_row,
        pass_seconds=passing,
        read_seconds_per_token=each_read,
        turn_seconds=max(0.0, statistics.fmean(process_seconds)),
        prompt_tokens=statistics.fmean(run["prompt_tokens"] for run in runs.values()),
        answer_tokens=statistics.fmean(run["answer_tokens"] for run in runs.values()),
        update_seconds=fixed,
        update_seconds_per_token=per_token,
        between_seconds=statistics.fmean(run["between"] for run in runs.values()),
        turn_tokens=tuple(float(length) for run in runs.values() for length in run["lengths"]),
    )


def _fit_rates(seconds: np.ndarray, *causes: np.ndarray) -> list[float]:
    """Return the seconds per unit of each cause, none negative, by least squares of seconds.

    Relative errors are not minimized, because the time of a run is the sum of its seconds.
    """
    columns = list(range(len(causes)))
    while True:
        solution = np.linalg.lstsq(np.stack([causes[k] for k in columns], axis=1), seconds, rcond=None)[0]
        if (solution >= 0).all():
            return [float(solution[columns.index(k)]) if k in columns else 0.0 for k in range(len(causes))]
        columns.pop(int(solution.argmin()))


def predict_seconds(setting: Setting, fitted: Fitted, tokens: float, updates: int) -> dict[str, float]:
    """Return the predicted seconds per step over several seeds, with their standard deviation."""
    runs = [simulate_run(scenario(setting, fitted, tokens, updates=updates, seed=seed)) for seed in range(SEEDS)]
    seconds = [run.seconds_per_update for run in runs]
    return {
        "seconds": statistics.fmean(seconds),
        "deviation": statistics.stdev(seconds),
        "staleness": statistics.fmean(run.token_staleness_mean for run in runs),
        "environment": statistics.fmean(run.shares.environment for run in runs),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--updates", type=int, default=14, help="updates per run")
    parser.add_argument(
        "--write", action="store_true", help=f"write simulated.json and simulated.md into {RESULTS.name}"
    )
    parser.add_argument("--folder", type=Path, help="folder of runs; finished ones are reused")
    parser.add_argument("--read-only", action="store_true", help="use only finished runs")
    arguments = parser.parse_args()
    began, updates = time.perf_counter(), arguments.updates
    with tempfile.TemporaryDirectory() as name:
        runs, folder = {}, arguments.folder or Path(name)
        for number, setting in enumerate((*FITTED, *HELD_OUT)):
            if not _is_finished(folder / str(number), updates):
                if arguments.read_only:
                    continue
                play(setting, updates, folder / str(number))
            runs[setting] = measure_run(setting, folder / str(number))
            print(f"{setting.name}: {runs[setting]['seconds']:.3f} s per step", file=sys.stderr)
        steps = [
            step
            for number in range(len(FITTED))
            for step in json.loads((folder / str(number) / STEPS).read_text())[UNCOUNTED:]
        ]
    result = build_result(runs, steps, updates, began)
    if arguments.write:
        (RESULTS / "raw" / "simulated.json").write_text(json.dumps(result) + "\n")
        (RESULTS / "simulated.md").write_text(page(result))
    print(json.dumps(result) if arguments.json else page(result))


def _is_finished(folder: Path, updates: int) -> bool:
    """Return whether a run with this number of updates is finished."""
    path = folder / "metrics.jsonl"
    return path.is_file() and len(path.read_text().splitlines()) == updates


def build_result(runs: dict[Setting, dict[str, Any]], steps: list[Step], updates: int, began: float) -> dict[str, Any]:
    """Return the result as one object."""
    fitted = fit({setting: runs[setting] for setting in FITTED}, steps)
    rows = []
    for setting, run in runs.items():
        # all episodes have equal lengths: tokens per update follow from them
        tokens = _tokens(runs, setting)
        predicted = predict_seconds(setting, fitted, tokens, updates)
        error = predicted["seconds"] / run["seconds"] - 1
        rows.append({"setting": setting.name, "held_out": setting in HELD_OUT, "measured": run, "foreseen": predicted,
                     "error": error})  # fmt: skip
    errors = [abs(row["error"]) for row in rows if row["held_out"]]
    return {
        "name": "simulated",
        "measured": {"rates": asdict(fitted), "runs": rows, "updates": updates},
        "ratios": {"median_error": statistics.median(errors), "largest_error": max(errors)},
        "goal": "seconds a step of held-out settings within 15 %",
        "bound": "how far runs of the same setting lie apart from seed to seed",
        **circumstances(began),
    }


def _tokens(runs: dict[Setting, dict[str, Any]], setting: Setting) -> float:
    """Return the tokens per update for a number of turns, by a linear fit over the fitted settings."""
    line = np.polyfit([each.turns for each in FITTED], [runs[each]["tokens"] for each in FITTED], 1)
    return float(np.polyval(line, setting.turns))


def page(result: dict[str, Any]) -> str:
    """Return the page of the result."""
    rates, ratios = result["measured"]["rates"], result["ratios"]
    held_out = [row for row in result["measured"]["runs"] if row["held_out"]]
    within = sum(abs(row["error"]) <= 0.15 for row in held_out)
    lines = [
        "# Accuracy of the simulator on real runs",
        "",
        f"`python -m benchmarks simulated --write`, {result['machine']['cores']} cores, idle machine, "
        f"{result['measured']['updates']} updates per run: the demo's untrained model in an environment with latency "
        "(log-normal, σ 0.7).",
        "",
        f"Rates from three runs without latency: a decode step takes {1e3 * rates['step_seconds']:.2f} ms plus "
        f"{1e3 * rates['step_seconds_per_sequence']:.3f} ms per sequence and "
        f"{1e3 * rates['step_seconds_per_row']:.3f} ms per KV slot in its range; a prefill "
        f"{1e3 * rates['pass_seconds']:.2f} ms plus {1e6 * rates['read_seconds_per_token']:.0f} µs per token, "
        f"the run's process {1e3 * rates['turn_seconds']:.2f} ms per turn; an update "
        f"{rates['update_seconds']:.3f} s plus {1e6 * rates['update_seconds_per_token']:.1f} µs per token; "
        f"the rest of a step {rates['between_seconds']:.3f} s.",
        "",
        f"Of {len(held_out)} held-out settings {within} are predicted within 15 %; the median error is "
        f"{ratios['median_error']:.1%}, the largest {ratios['largest_error']:.1%}.",
        "",
        "| setting | measured, s per step | predicted | error | σ over seeds | staleness measured | predicted |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["measured"]["runs"]:
        run, predicted = row["measured"], row["foreseen"]
        name = row["setting"] if row["held_out"] else f"{row['setting']} (fitted)"
        lines.append(
            f"| {name} | {run['seconds']:.3f} | {predicted['seconds']:.3f} | {row['error']:+.1%} | "
            f"{predicted['deviation'] / predicted['seconds']:.1%} | {run['staleness']:.2f} | "
            f"{predicted['staleness']:.2f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
