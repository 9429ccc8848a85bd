"""Context transform that retrieves similar past experience for every observation.

    golden: successful actions, by observation → the action;  warning: failed ones
    at each turn the two most similar golden entries and one warning follow the observation

Note:
    An episode must not retrieve actions of its group. The library changes only between steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from whetstone.chat import Message
from whetstone.plugins import OptionError
from whetstone.rollout.context_transforms.default_transform import IdentityTransform
from whetstone.rollout.context_transforms.insert_text import append_to_last
from whetstone.rollout.protocol import EpisodeState, StepOutcome
from whetstone.rollout.task_keys import on_policy_trajectories

Zone = Literal["golden", "warning"]


@dataclass(frozen=True, slots=True)
class Entry:
    """An action in a context, with the score of its episode."""

    seen: str
    done: str
    score: float


def insert_entry(level: list[Entry], entry: Entry, capacity: int) -> list[Entry]:
    """Return a level with an entry.

    If it is full, the entry must score higher than the worst one, which it replaces.

    Source: SLEA-RL 2026, arXiv:2603.18079, its code (`experience_library.py`).
    """
    if any(entry.seen == other.seen and entry.done == other.done for other in level):
        return level
    if len(level) < capacity:
        return [*level, entry]
    worst = min(range(len(level)), key=lambda k: level[k].score)
    if entry.score <= level[worst].score:
        return level
    return [*level[:worst], *level[worst + 1 :], entry]


def routine_successor(counts: Mapping[str, int], *, share: float = 0.7) -> str | None:
    """Return the tool that nearly always follows, so that retrieval is not needed; None if there is none.

    Source: SIT-Graph 2025; the fraction is not from the paper.
    """
    if not counts:
        return None
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] / sum(counts.values()) >= share else None


class Experience(IdentityTransform):
    """The most similar past experience, after every observation (SLEA-RL; XSkill; SIT-Graph's recall).

    The entries are read and not trained. None is shown before `warm_up` updates or with fewer than `min_entries`
    entries.

    Sources: SLEA-RL 2026, arXiv:2603.18079 (zones, levels, when); XSkill 2026 (two stores, distilled from siblings);
    SIT-Graph 2025 (routine steps need no recall: `routine_fraction`).

    Args:
        golden: Number of successful entries shown per step.
        warning: Number of failed entries shown per step.
        capacity: Maximum number of entries of either zone.
        warm_up: Updates before anything is shown.
        min_entries: Minimum number of entries before anything is shown.
        characters: Maximum number of characters shown per step.
        routine_fraction: Nothing is shown if one tool follows the last one in more than this fraction; 1: always shown.
    """

    at_evaluation = True

    def __init__(
        self,
        *,
        golden: int = 2,
        warning: int = 1,
        capacity: int = 100,
        warm_up: int = 5,
        min_entries: int = 10,
        characters: int = 800,
        routine_fraction: float = 1.0,
    ) -> None:
        if golden < 0 or warning < 0 or golden + warning == 0:
            raise OptionError("golden", f"golden + warning must be at least 1, got {golden} and {warning}")
        self.shown: dict[Zone, int] = {"golden": golden, "warning": warning}
        self.capacity, self.warm_up, self.min_entries, self.characters = capacity, warm_up, min_entries, characters
        self.routine_fraction = routine_fraction
        self.zones: dict[Zone, list[Entry]] = {"golden": [], "warning": []}
        self.edges: dict[str, dict[str, int]] = {}
        """Tool → tools called after it → number of times, in successful episodes."""
        self.steps = 0

    def observation(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """Return the messages with the most similar entries."""
        if self.steps < self.warm_up or sum(map(len, self.zones.values())) < self.min_entries or not messages:
            return messages
        calls = so_far.turns[-1].message.tool_calls
        follows = self.edges.get(calls[-1].name, {}) if calls else {}
        if self.routine_fraction < 1 and routine_successor(follows, share=self.routine_fraction) is not None:
            return messages
        seen = messages[-1].text
        lines = [
            f"{'worked before' if zone == 'golden' else 'failed before'}: {entry.done}"
            for zone in self.zones
            for entry in self._most_similar(zone, seen)
        ]
        return append_to_last(messages, "\n".join(lines)[: self.characters])

    def observe(self, outcome: StepOutcome, /) -> None:
        """See `Stateful`."""
        self.steps = outcome.step
        for group in outcome.groups:
            for trajectory in on_policy_trajectories(group):
                assert trajectory.score is not None
                zone: Zone = "golden" if trajectory.solved else "warning"
                before, last = trajectory.opening[-1].text if trajectory.opening else "", ""
                for turn in trajectory.turns:
                    for call in turn.message.tool_calls:
                        done = f"{call.name}({call.arguments})"
                        entry = Entry(before[:500], done, trajectory.score.value)
                        self.zones[zone] = insert_entry(self.zones[zone], entry, self.capacity)
                        if last and trajectory.solved:
                            follows = self.edges.setdefault(last, {})
                            follows[call.name] = follows.get(call.name, 0) + 1
                        last = call.name
                    before = turn.observation[-1].text if turn.observation else before

    def _most_similar(self, zone: Zone, seen: str) -> list[Entry]:
        ranked = sorted(self.zones[zone], key=lambda entry: -SequenceMatcher(None, entry.seen, seen[:500]).ratio())
        return ranked[: self.shown[zone]]

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        zones = {name: [[e.seen, e.done, e.score] for e in entries] for name, entries in self.zones.items()}
        return {"zones": zones, "edges": self.edges, "steps": self.steps}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        self.zones = {
            "golden": [Entry(*row) for row in state["zones"]["golden"]],
            "warning": [Entry(*row) for row in state["zones"]["warning"]],
        }
        self.edges = {name: dict(counts) for name, counts in state["edges"].items()}
        self.steps = state["steps"]

    def metrics(self) -> dict[str, float]:
        """Return the number of entries of each zone."""
        return {name: float(len(entries)) for name, entries in self.zones.items()}
