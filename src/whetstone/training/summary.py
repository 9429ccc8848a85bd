"""What did a run come to? What `summary.json` holds, as typed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whetstone import notebook_html
from whetstone.errors import RunDirectoryError
from whetstone.evaluation import Evaluation
from whetstone.evaluation.reading import evaluation_from
from whetstone.evaluation.stage_results import StageResult, read_stage_results
from whetstone.policies import Policy
from whetstone.record.run_directory import read_json
from whetstone.reporting import Journal, charts
from whetstone.training.final import final_policy

_CURVE = "reward/mean"


@dataclass(frozen=True, slots=True)
class AblationSummary:
    """What the run came to with some keys changed."""

    after: Evaluation
    overrides: Mapping[str, Any]
    """Dotted keys that differ."""
    seconds: float
    """Of its training."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a finished run came to."""

    run_dir: Path
    recipe: str
    """The recipe's name; that file's, or `recipe` where it is in none."""
    title: str
    seed: int
    evaluations: Mapping[str, Evaluation]
    """By stage: `untrained`, and `supervised` and `reinforcement` where there are such, in this order."""
    stages: Sequence[StageResult]
    """Each stage that trained the policy, compared with its own start."""
    during: Mapping[int, Evaluation]
    """By step, those made beside reinforcement."""
    ablations: Mapping[str, AblationSummary]
    """By name."""
    ends: Mapping[str, str]
    """By stage, what it ended by: `steps`; or `budget`, `success` or `plateau`, and what it had come to."""
    seconds: Mapping[str, float]
    """By stage, of training alone."""
    throughput: Mapping[str, float]
    """By stage, tokens per second in the mean."""
    failed_episodes: int
    """Episodes of reinforcement that have no score."""
    causes: Mapping[str, int]
    """Why, the most frequent causes first."""
    parameters: int
    """Of the policy."""
    written: Mapping[str, Any] = field(repr=False)
    """The content of `summary.json`."""

    @property
    def untrained(self) -> Evaluation:
        """The first evaluation, before any training."""
        return next(iter(self.evaluations.values()))

    @property
    def before(self) -> Evaluation:
        """The evaluation at the start of the last stage."""
        return list(self.evaluations.values())[-2:][0]

    @property
    def after(self) -> Evaluation:
        """The evaluation at the end of the last stage."""
        return list(self.evaluations.values())[-1]

    def _repr_html_(self) -> str:
        """What it came to and how it got there, in a notebook."""
        names = ("evaluation", "success", "95 % interval", "episodes")
        rows = [
            (name, f"{made.success:.1%}", f"{made.interval[0]:.1%} to {made.interval[1]:.1%}", str(made.episodes))
            for name, made in self.evaluations.items()
        ]
        steps = [row for row in Journal(self.run_dir).read() if row.get(_CURVE) is not None]
        points = [float(row["step"]) for row in steps], [row[_CURVE] for row in steps]
        curve = charts.curves({"reward": points}, x_label=f"step, {_CURVE}") if len(steps) > 1 else ""
        minutes = f"{sum(self.seconds.values()) / 60:.1f}"
        facts = {"recipe": self.recipe, "seed": str(self.seed), "minutes of training": minutes}
        report = {"report": str(self.run_dir / "report.html")}
        judged = [(stage.name, stage.rates, stage.statement) for stage in self.stages]
        stages = notebook_html.table(("stage", "success", "compared with its start"), judged) if judged else ""
        return notebook_html.box(self.title, facts | report, stages + notebook_html.table(names, rows) + curve)

    def policy(self, *, trust_remote_code: bool = False) -> Policy:
        """The policy the run ended with, loaded anew at each call.

        Args:
            trust_remote_code: As of `load_policy`.

        Raises:
            RunDirectoryError: Its checkpoint is gone or damaged.
        """
        return final_policy(self.run_dir, trust_remote_code=trust_remote_code)

    @classmethod
    def read(cls, run_dir: Path) -> RunSummary:
        """The summary of a finished run.

        Raises:
            RunDirectoryError: There is none, or it is damaged.
        """
        path = run_dir / "summary.json"
        written = read_json(path)
        if written is None:
            raise RunDirectoryError(f"{run_dir}: holds no finished run (summary.json is missing)")
        try:
            return cls(
                run_dir=run_dir,
                recipe=written["recipe"],
                title=written["title"],
                seed=written["seed"],
                evaluations={stage: evaluation_from(each) for stage, each in written["evaluations"].items()},
                stages=read_stage_results(written),
                during={int(step): evaluation_from(each) for step, each in written["during"].items()},
                ablations={
                    name: AblationSummary(evaluation_from(each["after"]), each["overrides"], each["seconds"])
                    for name, each in written["ablations"].items()
                },
                ends=written.get("ends", {}),  # runs of earlier days say nothing of it
                seconds=written["seconds"],
                throughput=written["throughput"],
                failed_episodes=written["failed"]["episodes"],
                causes=written["failed"]["causes"],
                parameters=written["parameters"],
                written=written,
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            said = str(error).partition("\n")[0]
            raise RunDirectoryError(f"{path}: is damaged: {type(error).__name__}: {said}") from None
