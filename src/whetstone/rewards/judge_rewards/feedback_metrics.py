"""Metrics from comments (AutoLibra): a judge turns free-text feedback on episodes into named metrics.

    comments → aspects (one behavior each, good or bad) → metrics (name and definition)
    held-out episodes → traits (metrics that an episode shows) → matched with the aspects of its comment

Coverage is the fraction of aspects that a trait matches, redundancy the fraction of traits that no aspect matches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.rewards.judges import Judge, Question

_GOOD, _BAD, _ABSENT, _NONE = "good", "bad", "absent", "none"


def _list_shape(key: str, fields: Mapping[str, Any], most: int) -> dict[str, Any]:
    item = {"type": "object", "properties": dict(fields), "required": list(fields), "additionalProperties": False}
    rows = {"type": "array", "items": item, "maxItems": most}
    return {"type": "object", "properties": {key: rows}, "required": [key], "additionalProperties": False}


def _choice_shape(key: str, choices: Sequence[str]) -> dict[str, Any]:
    fields = {"reason": {"type": "string", "maxLength": 2000}, key: {"type": "string", "enum": list(choices)}}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


_TEXT = {"type": "string", "maxLength": 400}
_ASPECTS = _list_shape("aspects", {"behavior": _TEXT, "is_good": {"type": "boolean"}}, 20)
_ASK_ASPECTS = (
    "Split the comment into aspects: concrete behaviors of the agent, each with whether the comment praises it."
)
_ASK_METRICS = """Group these aspects of comments into at most {most} metrics of an agent's behavior. Give each metric a
short name, and a definition that a reader can apply to other work. Metrics must not overlap."""
_ASK_TRAIT = (
    "Does the work show good or bad behavior in this metric, or is the metric absent from it? {name}: {definition}"
)
_ASK_MATCH = "Which of the metrics is about the same behavior as the aspect? Choose none if no metric is."


@dataclass(frozen=True, slots=True)
class FeedbackMetric:
    """Metric of an agent's behavior."""

    name: str
    """Short name, unique among the metrics."""
    definition: str
    """Definition that a judge applies."""

    @property
    def rule_text(self) -> str:
        """Return the metric as one text, for the reward `rules`."""
        return f"{self.name}: {self.definition}"


@dataclass(frozen=True, slots=True)
class MetricCoverage:
    """Coverage and redundancy of metrics on commented episodes."""

    aspects: int
    """Number of aspects of the comments."""
    matched_aspects: int
    """Number of aspects that a trait of their episode matches."""
    traits: int
    """Number of traits: metrics that are good or bad in an episode."""
    matched_traits: int
    """Number of traits that an aspect of their episode matches."""
    by_metric: Mapping[str, tuple[int, int]]
    """By metric, the number of its traits, and of those that match."""

    @property
    def aspect_coverage(self) -> float:
        """Return the fraction of aspects that the metrics cover; 0 without aspects."""
        return self.matched_aspects / max(1, self.aspects)

    @property
    def trait_redundancy(self) -> float:
        """Return the fraction of traits that no comment mentions; 0 without traits."""
        return 1 - self.matched_traits / self.traits if self.traits else 0.0


async def induce_metrics(
    judge: Judge, comments: Sequence[tuple[str, str]], *, max_metrics: int = 10
) -> list[FeedbackMetric]:
    """Induce named metrics from comments on episodes.

    Args:
        judge: Judge that splits comments and groups aspects.
        comments: Tuples (work of the agent, comment).
        max_metrics: Maximum number of metrics.

    Returns:
        Metrics with unique names; empty if the comments have no aspects.

    Source: AutoLibra 2025, arXiv:2505.02820.
    """
    aspects = [aspect for work, comment in comments for aspect in await _split(judge, work, comment)]
    if not aspects:
        return []
    shape = _list_shape("metrics", {"name": _TEXT, "definition": _TEXT}, max_metrics)
    ask = _ASK_METRICS.format(most=max_metrics)
    grouped = await judge.answer(Question(ask, {"aspects": "\n".join(aspects)}, shape))
    metrics = {str(each["name"]).strip(): str(each["definition"]).strip() for each in reversed(grouped["metrics"])}
    return [FeedbackMetric(name, text) for name, text in reversed(metrics.items()) if name and text]


async def measure_coverage(
    judge: Judge, metrics: Sequence[FeedbackMetric], comments: Sequence[tuple[str, str]]
) -> MetricCoverage:
    """Measure coverage and redundancy of metrics on commented episodes from which they were not induced.

    Args:
        judge: Judge that detects traits and matches aspects.
        metrics: The metrics.
        comments: Tuples (work of the agent, comment).

    Source: AutoLibra 2025, arXiv:2505.02820.
    """
    num_aspects = num_matched = 0
    traits, matched = Counter[str](), Counter[str]()
    for work, comment in comments:
        present = [each for each in metrics if await _has_trait(judge, each, work)]
        aspects = await _split(judge, work, comment)
        mentioned: set[str] = set()
        listed = "\n".join(each.rule_text for each in present)
        shape = _choice_shape("metric", [*(each.name for each in present), _NONE])
        for aspect in aspects if present else ():
            chosen = await judge.answer(Question(_ASK_MATCH, {"aspect": aspect, "metrics": listed}, shape))
            num_matched += chosen["metric"] != _NONE
            mentioned |= {str(chosen["metric"])} - {_NONE}
        num_aspects += len(aspects)
        traits.update(each.name for each in present)
        matched.update(mentioned)
    by_metric = {each.name: (traits[each.name], matched[each.name]) for each in metrics}
    return MetricCoverage(num_aspects, num_matched, traits.total(), matched.total(), by_metric)


async def _split(judge: Judge, work: str, comment: str) -> list[str]:
    """Split a comment into aspects, such as `good: checks its result`."""
    answer = await judge.answer(Question(_ASK_ASPECTS, {"work": work, "comment": comment}, _ASPECTS))
    return [f"{_GOOD if each['is_good'] else _BAD}: {each['behavior']}" for each in answer["aspects"]]


async def _has_trait(judge: Judge, metric: FeedbackMetric, work: str) -> bool:
    material = {"work": work, "metric": metric.rule_text}
    answer = await judge.answer(Question(_ASK_TRAIT, material, _choice_shape("trait", (_GOOD, _BAD, _ABSENT))))
    return bool(answer["trait"] != _ABSENT)
