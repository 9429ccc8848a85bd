"""Where good answers cannot be drawn yet, the criteria they will be judged by are shown; less and less of them.

    sample i of G sees the share λ_group(i) · λ_step(g) of the criteria; training shows it none

Easy to get wrong: ratios begin at 1 on the plain prompt, so an answer improbable without the criteria has a full
gradient: watch the divergence.
"""

from __future__ import annotations

import math
from typing import Literal

from whetstone.chat import Message
from whetstone.errors import TaskError
from whetstone.rollout.context_transforms.note import noted
from whetstone.rollout.context_transforms.plain import Untouched
from whetstone.rollout.protocol import EpisodeState
from whetstone.tasks.protocol import Source
from whetstone.trajectory import OffPolicy, Task

StepRule = Literal["linear", "power", "sigmoid"]


def group_share(index: int, size: int, *, rule: Literal["linear", "binary"] = "linear", num_guided: int = 1) -> float:
    """λ_group of a sample, from 0: (G − 1 − i)/(G − 1), or 1 for the first `num_guided`; 1 for a group of one.

    Source: RuscaRL 2025, arXiv:2508.16949, and its code.
    """
    if size == 1:
        return 1.0
    return (size - 1 - index) / (size - 1) if rule == "linear" else float(index < num_guided)


def step_share(
    step: int, steps: int, *, rule: StepRule = "sigmoid", power: float = 2.0, middle: float = 0.3, slope: float = 10.0
) -> float:
    """λ_step, with x = step / (steps − 1) from 0 to 1: 1 − x, (1 − x)^n, or 1 / (1 + exp((x − x0) s)).

    Source: RuscaRL 2025, arXiv:2508.16949, and its code.
    """
    x = min(1.0, max(0.0, step / (steps - 1) if steps > 1 else 1.0))
    if rule == "linear":
        return 1 - x
    return (1 - x) ** power if rule == "power" else 1 / (1 + math.exp((x - middle) * slope))


class Rubric(Untouched):
    """Criteria of the task in the prompt, more for the first samples of a group and early on (RuscaRL).

    Tasks have a private `rubric`: a list of texts, or of mappings with `criterion` and `points`. Where `shared` is
    binary with `num_guided` 0, nothing is shown.

    Source: RuscaRL 2025, arXiv:2508.16949, and its code (`vllm_rollout_spmd.py`).

    Args:
        steps: Updates in all.
        shared: Linear over the group, or the first `num_guided` samples.
        num_guided: Number of samples of a group that see the rubric, with the rule `binary`.
        rule: How it falls over the updates.
        power: Of the rule `power`.
        middle: Of the rule `sigmoid`: the share of the updates at which half is shown.
        slope: Of the rule `sigmoid`.
        trained: Whether training shows it too.
    """

    def __init__(
        self,
        *,
        steps: int,
        shared: Literal["linear", "binary"] = "linear",
        num_guided: int = 1,
        rule: StepRule = "sigmoid",
        power: float = 2.0,
        middle: float = 0.3,
        slope: float = 10.0,
        trained: bool = False,
    ) -> None:
        self.steps, self.shared, self.num_guided, self.rule = steps, shared, num_guided, rule
        self.power, self.middle, self.slope, self.trained = power, middle, slope, trained

    @property
    def trained_on(self) -> Literal["shown", "original"]:
        """Train on the context with the rubric if `trained` is set."""
        return "shown" if self.trained else "original"

    @property
    def off_policy(self) -> OffPolicy:
        """Ratios begin at 1."""
        return OffPolicy.RECOMPUTE

    def check(self, source: Source, first: int) -> None:
        """Whether tasks have what it shows.

        Raises:
            TaskError: One has not.
        """
        _criteria(source.task(first))

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """The criteria in front of it, good points and bad ones apart."""
        occasion = so_far.occasion
        criteria = _criteria(occasion.task)
        share = group_share(
            occasion.index, occasion.group_size, rule=self.shared, num_guided=self.num_guided
        ) * step_share(
            occasion.step, self.steps, rule=self.rule, power=self.power, middle=self.middle, slope=self.slope
        )
        count = len(criteria) if share >= 1 else round(share * len(criteria))
        chosen = sorted(occasion.random("rubric", occasion.index).sample(range(len(criteria)), count))
        good = [criteria[k][0] for k in chosen if criteria[k][1] >= 0]
        bad = [criteria[k][0] for k in chosen if criteria[k][1] < 0]
        listed = (("A good answer:", good), ("It does not:", bad))
        parts = ["\n- ".join([head, *lines]) for head, lines in listed if lines]
        return noted(messages, "\n".join([*parts, "Do not mention these points."]) if parts else "")


def _criteria(task: Task) -> list[tuple[str, float]]:
    if "rubric" not in task.private:
        raise TaskError(f"task {task.id}: has no private `rubric`, which the view shows")
    return [_criterion(each) for each in task.private["rubric"]]


def _criterion(written: object) -> tuple[str, float]:
    if isinstance(written, dict):
        return str(written["criterion"]), float(written.get("points", 1))
    return str(written), 1.0
