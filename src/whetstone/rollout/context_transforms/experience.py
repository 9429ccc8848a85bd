"""What was learned before is looked up at every step, by what the agent sees there.

    golden: what worked, by observation → the action;  warning: what failed
    at each turn the most alike two golden and one warning stand behind the observation

Easy to get wrong: an episode must not look up what its own group did. The library changes between steps only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from whetstone.chat import Message
from whetstone.plugins import OptionError
from whetstone.rollout.context_transforms.note import appended
from whetstone.rollout.context_transforms.plain import Untouched
from whetstone.rollout.protocol import EpisodeState, StepOutcome
from whetstone.rollout.task_keys import own

Zone = Literal["golden", "warning"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that was done, and what came of it."""

    seen: str
    done: str
    score: float


def admitted(level: list[Entry], entry: Entry, capacity: int) -> list[Entry]:
    """A level with an entry; a full one only lets in what scores strictly better than its worst, which goes.

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


def routine(counts: Mapping[str, int], *, share: float = 0.7) -> str | None:
    """What nearly always comes next, and so needs no looking up; None where nothing does.

    Source: SIT-Graph 2025; the share is ours.
    """
    if not counts:
        return None
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] / sum(counts.values()) >= share else None


class Experience(Untouched):
    """The most alike of what was done before, behind every observation (SLEA-RL; XSkill; SIT-Graph's recall).

    The entries are read and not trained. None is shown before `warm_up` updates or with fewer than `min_entries`
    entries.

    Sources: SLEA-RL 2026, arXiv:2603.18079 (zones, levels, when); XSkill 2026 (two stores, distilled from siblings);
    SIT-Graph 2025 (routine steps need no recall: `routine_fraction`).

    Args:
        golden: What worked, shown at a step.
        warning: What failed, shown at a step.
        capacity: Entries of either zone.
        warm_up: Updates before anything is shown.
        min_entries: Minimum number of entries before anything is shown.
        characters: What is shown at a step at most.
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
            raise OptionError("golden", f"one entry or more is shown at a step, got {golden} and {warning}")
        self.shown: dict[Zone, int] = {"golden": golden, "warning": warning}
        self.capacity, self.warm_up, self.min_entries, self.characters = capacity, warm_up, min_entries, characters
        self.routine_fraction = routine_fraction
        self.zones: dict[Zone, list[Entry]] = {"golden": [], "warning": []}
        self.edges: dict[str, dict[str, int]] = {}
        """Tool → tools called behind it → how often, in what worked."""
        self.steps = 0

    def observation(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """With what is most like it."""
        if self.steps < self.warm_up or sum(map(len, self.zones.values())) < self.min_entries or not messages:
            return messages
        calls = so_far.turns[-1].message.tool_calls
        follows = self.edges.get(calls[-1].name, {}) if calls else {}
        if self.routine_fraction < 1 and routine(follows, share=self.routine_fraction) is not None:
            return messages
        seen = messages[-1].text
        lines = [
            f"{'worked before' if zone == 'golden' else 'failed before'}: {entry.done}"
            for zone in self.zones
            for entry in self._alike(zone, seen)
        ]
        return appended(messages, "\n".join(lines)[: self.characters])

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`."""
        self.steps = heard.step
        for group in heard.groups:
            for trajectory in own(group):
                assert trajectory.score is not None
                zone: Zone = "golden" if trajectory.solved else "warning"
                before, last = trajectory.opening[-1].text if trajectory.opening else "", ""
                for turn in trajectory.turns:
                    for call in turn.message.tool_calls:
                        done = f"{call.name}({call.arguments})"
                        entry = Entry(before[:500], done, trajectory.score.value)
                        self.zones[zone] = admitted(self.zones[zone], entry, self.capacity)
                        if last and trajectory.solved:
                            follows = self.edges.setdefault(last, {})
                            follows[call.name] = follows.get(call.name, 0) + 1
                        last = call.name
                    before = turn.observation[-1].text if turn.observation else before

    def _alike(self, zone: Zone, seen: str) -> list[Entry]:
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
        """How much there is."""
        return {name: float(len(entries)) for name, entries in self.zones.items()}
