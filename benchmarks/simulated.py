"""Does the simulator say what a real run takes? Real runs of the whole loop, and what was foreseen of them.

The demo's model, untrained, in a world whose answers take a while that is drawn anew for each (log-normal). Three runs
without latency give the rates: a decode step by its batch, an update by its tokens, what a step does beside. From those
alone the simulator says seconds a step of other runs: other latencies, other numbers of episodes at once, other bounds,
other lengths. The error is told of each.

Easy to get wrong: a run is noisy itself. Beside each prediction stands how far simulated runs of the same length lie
apart from seed to seed.
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
from whetstone.inference.forward import RowForward
from whetstone.inference.local import LocalEngine
from whetstone.recipe import load_recipe
from whetstone.record import stored_lines
from whetstone.reporting import Progress
from whetstone.scaling.simulation import simulate
from whetstone.scaling.simulation_scenario import EngineRates, EpisodeShape, LearnerRates, Scenario, Spread
from whetstone.training import train
from whetstone.trajectory import Score, Task, Trajectory

RESULTS = Path(__file__).parent / "results"
SIGMA, GROUPS, GROUP = 0.7, 8, 4
SKIPPED, SEEDS = 2, 5
UNCOUNTED = 200
"""Steps of the engine in front that do not count."""
STEPS = "steps.json"
"""Of the engine, in a run's folder."""
COMMON = [
    "ablations=null",
    "supervised=null",
    "reward=simulated:parity",
    f"rollout.group_size={GROUP}",
    # an untrained model hardly ends a turn by itself: a digit ends it, some fifteen tokens on
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
    """Of an answer, in the mean."""
    places: int = 32
    ahead: int = 0
    bound: int = 0

    @property
    def name(self) -> str:
        """In a line."""
        bounds = f"{self.ahead} ahead, bound {self.bound}" if self.ahead else "synchronous"
        return f"{self.turns} turns, answers of {self.seconds:g} s, {self.places} at once, {bounds}"


FITTED = (
    Setting(turns=2, places=4),
    Setting(turns=3, places=32),
    Setting(turns=3, places=96, ahead=1, bound=1),
)
"""Without latency; the last has as many episodes under way as those that run ahead: with more rows of keys than lie in
the processor's own memory each costs more."""
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
    """Answers after a while, whatever was said, so many times."""

    def __init__(self, *, turns: int = 3, seconds: float = 0.0) -> None:
        self.turns, self.seconds, self.left = turns, seconds, turns
        self.numbers = random.Random()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """The task."""
        self.numbers, self.left = random.Random(f"{task.id} {seed}"), self.turns
        return Observation((user(task.prompt),))

    async def step(self, action: Message) -> StepResult:
        """After a while."""
        if self.seconds:
            await asyncio.sleep(self.numbers.lognormvariate(math.log(self.seconds) - SIGMA**2 / 2, SIGMA))
        self.left -= 1
        return StepResult(Observation((user("go on"),)), terminated=self.left == 0)

    async def close(self) -> None:
        """Nothing is held."""


async def parity(trajectory: Trajectory, task: Task) -> Score:
    """1 where the ids that were sampled add up to an odd number: there is always something to learn from."""
    return Score(float(sum(sum(turn.action.ids) for turn in trajectory.turns) % 2), success=True)


def play(setting: Setting, updates: int, folder: Path) -> None:
    """A real run."""
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
    with noted() as steps:
        train(load_recipe("demo", overrides), folder, progress=Progress(quiet=True))
    (folder / STEPS).write_text(json.dumps(steps))


Step = tuple[float, int, int, int]
"""Seconds of a step of the engine, prompt tokens, sequences that were given a token, rows attention went through."""


@contextlib.contextmanager
def noted() -> Iterator[list[Step]]:
    """Each step of the engine within the block."""
    steps: list[Step] = []
    count = LocalEngine._count

    def counted(self: LocalEngine, **more: float) -> None:
        if "busy_seconds" in more:
            read, drawn, rows = int(more["prefill_tokens"]), int(more["decode_tokens"]), 0
            if drawn and isinstance(self._forward, RowForward):
                cache = self._forward.cache
                # where the chosen rows are copied, that is as dear as three times as many
                rows = 3 * len(cache.chosen) if cache.span is None else cache.span.stop - cache.span.start
            steps.append((more["busy_seconds"], read, drawn, rows))
        count(self, **more)

    LocalEngine._count = counted  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        LocalEngine._count = count  # type: ignore[method-assign]


def measured(setting: Setting, folder: Path) -> dict[str, Any]:
    """Seconds of a real run's steps and what they went into; the first and those without sampling beside are out."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ends = [row["time/elapsed_seconds"] for row in rows]
    last = len(rows) - (setting.ahead + 1 if setting.ahead else 0)  # behind it nothing new is sampled
    lengths = [ends[k] - ends[k - 1] for k in range(SKIPPED, last)]
    counted = rows[SKIPPED:last]
    rest = [s - r["time/rollout"] - r["time/update"] for s, r in zip(lengths, counted, strict=True)]
    lines = stored_lines(folder)
    said = [len(turn["action"]["ids"]) for line in lines for turn in line["turns"]]
    read = [[len(turn["context"]["ids"]) for turn in line["turns"]] for line in lines]
    return {
        "seconds": statistics.fmean(lengths),
        "each": [round(length, 4) for length in lengths],
        "rollout": statistics.fmean(row["time/rollout"] for row in counted),
        "update": statistics.fmean(row["time/update"] for row in counted),
        "engine": statistics.fmean(row["time/generation"] for row in counted),
        "tokens": statistics.fmean(row["update/computed_tokens"] for row in counted),
        "between": statistics.fmean(max(0.0, each) for each in rest),
        "turn_tokens": statistics.fmean(said),
        "lengths": said[:: max(1, len(said) // 200)],
        "turns": len(said) / max(1, len(lines)),
        "prompt_tokens": statistics.fmean(turns[0] for turns in read if turns),
        "answer_tokens": statistics.fmean(count for turns in read for count in turns[1:]),
        "staleness": statistics.fmean(row["policy/staleness_mean"] for row in counted),
    }


@dataclass(frozen=True, slots=True)
class Fitted:
    """What the runs without latency say."""

    step_seconds: float
    step_seconds_per_sequence: float
    step_seconds_per_row: float
    pass_seconds: float
    read_seconds_per_token: float
    turn_seconds: float
    """Of the run's process for each turn."""
    prompt_tokens: float
    answer_tokens: float
    update_seconds: float
    update_seconds_per_token: float
    between_seconds: float
    turn_tokens: tuple[float, ...]
    """Lengths of turns, as they were drawn."""


def scenario(setting: Setting, fitted: Fitted, tokens: float, *, updates: int, seed: int) -> Scenario:
    """What is simulated of a setting.

    Args:
        tokens: That an update learns from.
    """
    answer = Spread(setting.seconds, SIGMA)
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
            turns=Spread(setting.turns),
            prompt_tokens=Spread(fitted.prompt_tokens),
            turn_tokens=Spread(0, values=fitted.turn_tokens),
            observation_tokens=Spread(fitted.answer_tokens),
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
    """Rates by least squares.

    Args:
        runs: Without latency.
        steps: Of their engines, as `noted` has them.
    """
    alone = np.array([step for step in steps if step[2] and not step[1]], dtype=float)
    step, each_sequence, each_row = _rates(alone[:, 0], np.ones(len(alone)), alone[:, 2], alone[:, 3])
    passes = np.array([step for step in steps if step[1]], dtype=float)
    drawn = passes[:, 2] > 0
    beside_drawing = passes[:, 0] - drawn * (step + each_sequence * passes[:, 2] + each_row * passes[:, 3])
    passing, each_read = _rates(beside_drawing, np.ones(len(passes)), passes[:, 1])
    fixed, per_token = _rates(
        np.array([run["update"] for run in runs.values()]),
        np.ones(len(runs)),
        np.array([run["tokens"] for run in runs.values()]),
    )
    turns = [GROUPS * GROUP * run["turns"] for run in runs.values()]
    beside = [(run["rollout"] - run["engine"]) / count for run, count in zip(runs.values(), turns, strict=True)]
    return Fitted(
        step_seconds=step,
        step_seconds_per_sequence=each_sequence,
        step_seconds_per_row=each_row,
        pass_seconds=passing,
        read_seconds_per_token=each_read,
        turn_seconds=max(0.0, statistics.fmean(beside)),
        prompt_tokens=statistics.fmean(run["prompt_tokens"] for run in runs.values()),
        answer_tokens=statistics.fmean(run["answer_tokens"] for run in runs.values()),
        update_seconds=fixed,
        update_seconds_per_token=per_token,
        between_seconds=statistics.fmean(run["between"] for run in runs.values()),
        turn_tokens=tuple(float(length) for run in runs.values() for length in run["lengths"]),
    )


def _rates(seconds: np.ndarray, *causes: np.ndarray) -> list[float]:
    """What each of the causes takes a time, none less than nothing: by least squares of seconds, not of shares of
    them: what a run takes is their sum."""
    kept = list(range(len(causes)))
    while True:
        found = np.linalg.lstsq(np.stack([causes[k] for k in kept], axis=1), seconds, rcond=None)[0]
        if (found >= 0).all():
            return [float(found[kept.index(k)]) if k in kept else 0.0 for k in range(len(causes))]
        kept.pop(int(found.argmin()))


def foreseen(setting: Setting, fitted: Fitted, tokens: float, updates: int) -> dict[str, float]:
    """Seconds a step over some seeds, and how far they lie apart."""
    runs = [simulate(scenario(setting, fitted, tokens, updates=updates, seed=seed)) for seed in range(SEEDS)]
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
    parser.add_argument("--updates", type=int, default=14, help="of each run")
    parser.add_argument(
        "--write", action="store_true", help=f"write simulated.json and simulated.md into {RESULTS.name}"
    )
    parser.add_argument("--folder", type=Path, help="where runs are kept, and read where they are there")
    parser.add_argument("--read-only", action="store_true", help="take only runs that are there")
    arguments = parser.parse_args()
    began, updates = time.perf_counter(), arguments.updates
    with tempfile.TemporaryDirectory() as name:
        runs, folder = {}, arguments.folder or Path(name)
        for number, setting in enumerate((*FITTED, *HELD_OUT)):
            if not _whole(folder / str(number), updates):
                if arguments.read_only:
                    continue
                play(setting, updates, folder / str(number))
            runs[setting] = measured(setting, folder / str(number))
            print(f"{setting.name}: {runs[setting]['seconds']:.3f} s a step", file=sys.stderr)
        steps = [
            step
            for number in range(len(FITTED))
            for step in json.loads((folder / str(number) / STEPS).read_text())[UNCOUNTED:]
        ]
    told = told_of(runs, steps, updates, began)
    if arguments.write:
        (RESULTS / "simulated.json").write_text(json.dumps(told) + "\n")
        (RESULTS / "simulated.md").write_text(page(told))
    print(json.dumps(told) if arguments.json else page(told))


def _whole(folder: Path, updates: int) -> bool:
    """Whether a run of so many updates is there."""
    path = folder / "metrics.jsonl"
    return path.is_file() and len(path.read_text().splitlines()) == updates


def told_of(runs: dict[Setting, dict[str, Any]], steps: list[Step], updates: int, began: float) -> dict[str, Any]:
    """The result as one object."""
    fitted = fit({setting: runs[setting] for setting in FITTED}, steps)
    rows = []
    for setting, run in runs.items():
        # every episode is as long: tokens of an update are those of its episodes
        tokens = _tokens(runs, setting)
        found = foreseen(setting, fitted, tokens, updates)
        error = found["seconds"] / run["seconds"] - 1
        rows.append({"setting": setting.name, "held_out": setting in HELD_OUT, "measured": run, "foreseen": found,
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
    """Tokens of an update, by the turns of its episodes: the line through those that were fitted."""
    line = np.polyfit([each.turns for each in FITTED], [runs[each]["tokens"] for each in FITTED], 1)
    return float(np.polyval(line, setting.turns))


def page(told: dict[str, Any]) -> str:
    """The result in words."""
    rates, ratios = told["measured"]["rates"], told["ratios"]
    held = [row for row in told["measured"]["runs"] if row["held_out"]]
    within = sum(abs(row["error"]) <= 0.15 for row in held)
    lines = [
        "# What the simulator foresees, against real runs",
        "",
        f"`python benchmarks/simulated.py --write`, {told['machine']['cores']} cores, alone, "
        f"{told['measured']['updates']} updates a run: the demo's model, untrained, in a world that answers after a "
        "while (log-normal, σ 0.7).",
        "",
        f"Rates from three runs without latency: a decode step takes {1e3 * rates['step_seconds']:.2f} ms and "
        f"{1e3 * rates['step_seconds_per_sequence']:.3f} ms a sequence and {1e3 * rates['step_seconds_per_row']:.3f} "
        f"ms a row that lies among them; a pass over prompts "
        f"{1e3 * rates['pass_seconds']:.2f} ms and {1e6 * rates['read_seconds_per_token']:.0f} µs a token, the run's "
        f"own process {1e3 * rates['turn_seconds']:.2f} ms a turn; an update {rates['update_seconds']:.3f} s and "
        f"{1e6 * rates['update_seconds_per_token']:.1f} µs a token; a step {rates['between_seconds']:.3f} s beside.",
        "",
        f"Of {len(held)} held-out settings {within} are foreseen within 15 %; the median error is "
        f"{ratios['median_error']:.1%}, the largest {ratios['largest_error']:.1%}.",
        "",
        "| setting | measured, s a step | foreseen | error | seeds apart (σ) | staleness measured | foreseen |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in told["measured"]["runs"]:
        run, found = row["measured"], row["foreseen"]
        name = row["setting"] if row["held_out"] else f"{row['setting']} (fitted)"
        lines.append(
            f"| {name} | {run['seconds']:.3f} | {found['seconds']:.3f} | {row['error']:+.1%} | "
            f"{found['deviation'] / found['seconds']:.1%} | {run['staleness']:.2f} | {found['staleness']:.2f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
