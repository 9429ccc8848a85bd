"""Context transform that shows grading criteria, fewer over time, on tasks without successful samples.

    sample i of G sees the fraction λ_group(i) · λ_step(g) of the criteria; training shows it none

Note:
    Ratios start at 1 on the plain prompt, so a response that is improbable without the criteria has a full gradient:
    monitor the KL divergence.
"""

from __future__ import annotations

import math
from typing import Literal

from whetstone.chat import Message
from whetstone.errors import TaskError
from whetstone.rollout.context_transforms.default_transform import IdentityTransform
from whetstone.rollout.context_transforms.insert_text import prepend_to_task
from whetstone.rollout.protocol import EpisodeState
from whetstone.tasks.protocol import Source
from whetstone.trajectory import OffPolicy, Task

StepRule = Literal["linear", "power", "sigmoid"]


def group_share(index: int, size: int, *, rule: Literal["linear", "binary"] = "linear", num_guided: int = 1) -> float:
    """Return λ_group, the fraction of criteria that sample `index` of a group of `size` sees.

    Linear: (G − 1 − i)/(G − 1). Binary: 1 for the first `num_guided` samples, else 0. It is 1 for a group of one.

    Source: RuscaRL 2025, arXiv:2508.16949, and its code.
    """
    if size == 1:
        return 1.0
    return (size - 1 - index) / (size - 1) if rule == "linear" else float(index < num_guided)


def step_share(
    step: int, steps: int, *, rule: StepRule = "sigmoid", power: float = 2.0, middle: float = 0.3, slope: float = 10.0
) -> float:
    """Return λ_step, the fraction of criteria that is shown at an update, with x = step / (steps − 1) from 0 to 1.

    Linear: 1 − x. Power: (1 − x)^n. Sigmoid: 1 / (1 + exp((x − x0) s)).

    Source: RuscaRL 2025, arXiv:2508.16949, and its code.
    """
    x = min(1.0, max(0.0, step / (steps - 1) if steps > 1 else 1.0))
    if rule == "linear":
        return 1 - x
    return (1 - x) ** power if rule == "power" else 1 / (1 + math.exp((x - middle) * slope))


class RubricPrompt(IdentityTransform):
    """Shows criteria of the task in the prompt: more to the first samples of a group, fewer over training (RuscaRL).

    Tasks have a private `rubric`: a list of texts, or of mappings with `criterion` and `points`. If `shared` is binary
    with `num_guided` 0, nothing is shown.

    Source: RuscaRL 2025, arXiv:2508.16949, and its code (`vllm_rollout_spmd.py`).

    Args:
        steps: Total number of updates.
        shared: Rule within a group: `linear`, or `binary` for the first `num_guided` samples.
        num_guided: Number of samples of a group that see the rubric, with the rule `binary`.
        rule: Decay over the updates.
        power: Exponent of the rule `power`.
        middle: Fraction of the updates at which half is shown, with the rule `sigmoid`.
        slope: Slope of the rule `sigmoid`.
        trained: Whether the training context contains the rubric.
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
        """Return `shown` if the training context contains the rubric (`trained`), else `original`."""
        return "shown" if self.trained else "original"

    @property
    def off_policy(self) -> OffPolicy:
        """Return `RECOMPUTE`: ratios start at 1."""
        return OffPolicy.RECOMPUTE

    def check(self, source: Source, first: int) -> None:
        """Check that the tasks have a private `rubric`; see `ChecksSource.check`.

        Raises:
            TaskError: If the first task has none.
        """
        _criteria(source.task(first))

    def opening(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Insert the shown criteria before the task; positive and negative ones are listed separately."""
        episode_key = state.episode_key
        criteria = _criteria(episode_key.task)
        share = group_share(
            episode_key.index, episode_key.group_size, rule=self.shared, num_guided=self.num_guided
        ) * step_share(
            episode_key.step, self.steps, rule=self.rule, power=self.power, middle=self.middle, slope=self.slope
        )
        count = len(criteria) if share >= 1 else round(share * len(criteria))
        chosen = sorted(episode_key.random("rubric", episode_key.index).sample(range(len(criteria)), count))
        good = [criteria[k][0] for k in chosen if criteria[k][1] >= 0]
        bad = [criteria[k][0] for k in chosen if criteria[k][1] < 0]
        listed = (("A good answer:", good), ("It does not:", bad))
        parts = ["\n- ".join([head, *lines]) for head, lines in listed if lines]
        return prepend_to_task(messages, "\n".join([*parts, "Do not mention these points."]) if parts else "")


def _criteria(task: Task) -> list[tuple[str, float]]:
    if "rubric" not in task.private:
        raise TaskError(
            f"task {task.id}: has no private `rubric`, which the context transform shows; add it to the task"
        )
    return [_criterion(each) for each in task.private["rubric"]]


def _criterion(written: object) -> tuple[str, float]:
    if isinstance(written, dict):
        return str(written["criterion"]), float(written.get("points", 1))
    return str(written), 1.0
