"""Summary of a finished run: the content of `summary.json` as typed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whetstone import notebook_html
from whetstone.errors import RunDirectoryError
from whetstone.evaluation import Evaluation
from whetstone.evaluation.load_evaluation import load_evaluation
from whetstone.evaluation.stage_results import StageResult, read_stage_results
from whetstone.policies import Policy
from whetstone.record.run_directory import read_json
from whetstone.reporting import Journal, charts
from whetstone.training.final_checkpoint import final_policy

_CURVE = "reward/mean"


@dataclass(frozen=True, slots=True)
class AblationSummary:
    """Result of an ablation: the run repeated with some keys changed."""

    after: Evaluation
    """Last evaluation of the ablation."""
    overrides: Mapping[str, Any]
    """Changed recipe keys (dotted) and their values."""
    seconds: float
    """Training time in seconds."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of a finished run, returned by `train` and read by `RunSummary.read`."""

    run_dir: Path
    """Run directory."""
    recipe: str
    """Name of the recipe: that of its file, or `recipe` without a file."""
    title: str
    """Title of the recipe, else its name."""
    seed: int
    """Random seed of the run."""
    evaluations: Mapping[str, Evaluation]
    """Evaluations by stage, in order: `untrained`, then `supervised` and `reinforcement` if they exist."""
    stages: Sequence[StageResult]
    """Each stage that trained the policy, compared with its own start."""
    during: Mapping[int, Evaluation]
    """Evaluations during reinforcement, by step."""
    ablations: Mapping[str, AblationSummary]
    """Ablations by name."""
    ends: Mapping[str, str]
    """Stopping reason by stage: `steps`; or `budget`, `success` or `plateau`, with the value reached."""
    seconds: Mapping[str, float]
    """Training time in seconds, by stage, without evaluations."""
    throughput: Mapping[str, float]
    """Mean tokens per second, by stage."""
    failed_episodes: int
    """Number of episodes of reinforcement without a score."""
    causes: Mapping[str, int]
    """Causes of failed episodes with their number, the most frequent first."""
    parameters: int
    """Number of parameters of the policy."""
    written: Mapping[str, Any] = field(repr=False)
    """Content of `summary.json`."""

    @property
    def untrained(self) -> Evaluation:
        """First evaluation, before any training."""
        return next(iter(self.evaluations.values()))

    @property
    def before(self) -> Evaluation:
        """Evaluation at the start of the last stage."""
        return list(self.evaluations.values())[-2:][0]

    @property
    def after(self) -> Evaluation:
        """Evaluation at the end of the last stage."""
        return list(self.evaluations.values())[-1]

    def _repr_html_(self) -> str:
        """Return results and training curve as HTML, which notebooks display."""
        names = ("evaluation", "success", "95 % interval", "episodes")
        rows = [
            (
                name,
                f"{evaluation.success:.1%}",
                f"{evaluation.interval[0]:.1%} to {evaluation.interval[1]:.1%}",
                str(evaluation.episodes),
            )
            for name, evaluation in self.evaluations.items()
        ]
        steps = [row for row in Journal(self.run_dir).read() if row.get(_CURVE) is not None]
        points = [float(row["step"]) for row in steps], [row[_CURVE] for row in steps]
        curve = charts.plot_curves({"reward": points}, x_label=f"step, {_CURVE}") if len(steps) > 1 else ""
        minutes = f"{sum(self.seconds.values()) / 60:.1f}"
        facts = {"recipe": self.recipe, "seed": str(self.seed), "minutes of training": minutes}
        report = {"report": str(self.run_dir / "report.html")}
        judged = [(stage.name, stage.formatted_rates, stage.formatted_outcome) for stage in self.stages]
        stages = notebook_html.render_table(("stage", "success", "compared with its start"), judged) if judged else ""
        return notebook_html.render_box(
            self.title, facts | report, stages + notebook_html.render_table(names, rows) + curve
        )

    def policy(self, *, trust_remote_code: bool = False) -> Policy:
        """Load the final policy of the run; each call loads it again.

        Args:
            trust_remote_code: Whether Python code of the model folder may run.

        Raises:
            RunDirectoryError: If the checkpoint is missing or damaged.
        """
        return final_policy(self.run_dir, trust_remote_code=trust_remote_code)

    @classmethod
    def read(cls, run_dir: Path) -> RunSummary:
        """Read the summary of a finished run from its directory.

        Raises:
            RunDirectoryError: If `summary.json` is missing or damaged.
        """
        path = run_dir / "summary.json"
        written = read_json(path)
        if written is None:
            raise RunDirectoryError(
                f"{run_dir}: contains no finished run (summary.json is missing); "
                "wait for its end, or resume it with `whetstone train`"
            )
        try:
            return cls(
                run_dir=run_dir,
                recipe=written["recipe"],
                title=written["title"],
                seed=written["seed"],
                evaluations={stage: load_evaluation(each) for stage, each in written["evaluations"].items()},
                stages=read_stage_results(written),
                during={int(step): load_evaluation(each) for step, each in written["during"].items()},
                ablations={
                    name: AblationSummary(load_evaluation(each["after"]), each["overrides"], each["seconds"])
                    for name, each in written["ablations"].items()
                },
                ends=written.get("ends", {}),  # earlier versions do not store it
                seconds=written["seconds"],
                throughput=written["throughput"],
                failed_episodes=written["failed"]["episodes"],
                causes=written["failed"]["causes"],
                parameters=written["parameters"],
                written=written,
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            problem = str(error).partition("\n")[0]
            raise RunDirectoryError(f"{path}: is damaged: {type(error).__name__}: {problem}") from None
