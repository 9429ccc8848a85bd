"""Context transform that retrieves similar past experience for every observation, or once per episode.

    golden: successful actions, by observation → the action;  warning: failed ones
    at each turn the two most similar golden entries and one warning follow the observation

Note:
    An episode must not retrieve actions of its group. The library changes only between steps.
"""

from __future__ import annotations

import re
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
class ExperienceEntry:
    """Stored action with the observation before it and the score of its episode."""

    seen: str
    """Observation before the action, truncated to 500 characters."""
    done: str
    """Action as `tool(arguments)`."""
    score: float
    """Score of the episode."""


def insert_entry(level: list[ExperienceEntry], entry: ExperienceEntry, capacity: int) -> list[ExperienceEntry]:
    """Insert an entry into one zone of the library, and return the zone's entries.

    Duplicates are ignored. If the zone is full, the entry replaces the one with the lowest score if its own score is
    higher.

    Args:
        level: Entries of the zone.
        entry: New entry.
        capacity: Maximum number of entries.

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
    """Return the tool that nearly always follows another one; None if there is none.

    After such a tool, retrieval of experience is skipped.

    Args:
        counts: Number of calls that followed, by tool.
        share: Minimum fraction of the calls, from 0 to 1.

    Source: SIT-Graph 2025; the fraction is not from the paper.
    """
    if not counts:
        return None
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] / sum(counts.values()) >= share else None


def get_cluster(text: str) -> str:
    """Return the cluster of an observation: its text without case and white space, with `#` for each number.

    >>> get_cluster("Room 12:  a door, 3 keys") == get_cluster("room 7: a door, 41 keys")
    True
    """
    return " ".join(re.sub(r"[-+]?\d+(?:\.\d+)?", "#", text.lower()).split())[:500]


class Experience(IdentityTransform):
    """Appends the most similar past actions to every observation (SLEA-RL; XSkill; SIT-Graph's recall).

    The entries are read and not trained. None is shown before `warm_up` updates, or while the library has fewer than
    `min_entries` entries. To improve an agent without weight updates, train with a learning rate close to 0: the
    library grows, and the weights stay.

    Sources: SLEA-RL 2026, arXiv:2603.18079 (zones, levels, when); XSkill 2026 (two stores, distilled from siblings);
    SIT-Graph 2025 (routine steps need no recall: `routine_fraction`).

    Args:
        golden: Number of successful entries shown per turn.
        warning: Number of failed entries shown per turn.
        capacity: Maximum number of entries of each zone.
        warm_up: Number of updates before entries are shown.
        min_entries: Minimum number of entries before entries are shown.
        characters: Maximum number of characters shown per turn.
        routine_fraction: Nothing is shown if one tool follows the last one in at least this fraction of the cases; 1:
            always shown.
        lookup: `step`: entries follow every observation; `episode`: only the first messages.
        clusters: Show only entries whose observation is equal up to numbers (`get_cluster`), instead of similar ones.
        next_tool: Also show the tool that most often followed the last one in the same cluster of observations.
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
        lookup: Literal["step", "episode"] = "step",
        clusters: bool = False,
        next_tool: bool = False,
    ) -> None:
        if golden < 0 or warning < 0 or golden + warning == 0:
            raise OptionError("golden", f"golden + warning must be at least 1, got {golden} and {warning}")
        self.shown: dict[Zone, int] = {"golden": golden, "warning": warning}
        self.capacity, self.warm_up, self.min_entries, self.characters = capacity, warm_up, min_entries, characters
        self.routine_fraction = routine_fraction
        self.zones: dict[Zone, list[ExperienceEntry]] = {"golden": [], "warning": []}
        self.edges: dict[str, dict[str, int]] = {}
        """Tool → tools called after it → number of times, in successful episodes."""
        self.lookup, self.clusters, self.next_tool = lookup, clusters, next_tool
        self.edge_states: dict[str, dict[str, int]] = {}
        """Tool and cluster of its result → tools called after it → number of times, in successful episodes."""
        self.steps = 0

    def opening(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Append the entries that are most similar to the first messages, with `lookup: episode`."""
        return self._append(messages, state) if self.lookup == "episode" else messages

    def observation(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Append the entries that are most similar to the observation, with `lookup: step`."""
        return self._append(messages, state) if self.lookup == "step" else messages

    def predict_next_tool(self, tool: str, observation: str) -> str | None:
        """Return the tool that most often followed a tool with this kind of result; None if none is known.

        Args:
            tool: Last tool.
            observation: Text of its result.
        """
        follows = self.edge_states.get(_edge_state(tool, observation), {})
        return max(follows, key=lambda name: follows[name]) if follows else None

    def _append(self, messages: tuple[Message, ...], state: EpisodeState) -> tuple[Message, ...]:
        if self.steps < self.warm_up or sum(map(len, self.zones.values())) < self.min_entries or not messages:
            return messages
        calls = state.turns[-1].message.tool_calls if state.turns else ()
        follows = self.edges.get(calls[-1].name, {}) if calls else {}
        if self.routine_fraction < 1 and routine_successor(follows, share=self.routine_fraction) is not None:
            return messages
        seen = messages[-1].text
        lines = [
            f"{'worked before' if zone == 'golden' else 'failed before'}: {entry.done}"
            for zone in self.zones
            for entry in self._most_similar(zone, seen)
        ]
        if self.next_tool and calls and (following := self.predict_next_tool(calls[-1].name, seen)) is not None:
            lines.insert(0, f"usually next: {following}")
        return append_to_last(messages, "\n".join(lines)[: self.characters])

    def observe(self, outcome: StepOutcome, /) -> None:
        """Store the actions of a step's episodes, and count which tool follows which."""
        self.steps = outcome.step
        for group in outcome.groups:
            for trajectory in on_policy_trajectories(group):
                assert trajectory.score is not None
                zone: Zone = "golden" if trajectory.solved else "warning"
                before, last = trajectory.opening[-1].text if trajectory.opening else "", ""
                for turn in trajectory.turns:
                    for call in turn.message.tool_calls:
                        done = f"{call.name}({call.arguments})"
                        entry = ExperienceEntry(before[:500], done, trajectory.score.value)
                        self.zones[zone] = insert_entry(self.zones[zone], entry, self.capacity)
                        if last and trajectory.solved:
                            for key, edges in ((last, self.edges), (_edge_state(last, before), self.edge_states)):
                                follows = edges.setdefault(key, {})
                                follows[call.name] = follows.get(call.name, 0) + 1
                        last = call.name
                    before = turn.observation[-1].text if turn.observation else before

    def _most_similar(self, zone: Zone, seen: str) -> list[ExperienceEntry]:
        if self.clusters:
            own = [entry for entry in self.zones[zone] if get_cluster(entry.seen) == get_cluster(seen)]
            return sorted(own, key=lambda entry: -entry.score)[: self.shown[zone]]
        ranked = sorted(self.zones[zone], key=lambda entry: -SequenceMatcher(None, entry.seen, seen[:500]).ratio())
        return ranked[: self.shown[zone]]

    def state(self) -> dict[str, Any]:
        """Return the library for a checkpoint."""
        zones = {name: [[e.seen, e.done, e.score] for e in entries] for name, entries in self.zones.items()}
        return {"zones": zones, "edges": self.edges, "edge_states": self.edge_states, "steps": self.steps}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the library of a checkpoint."""
        self.zones = {
            "golden": [ExperienceEntry(*row) for row in state["zones"]["golden"]],
            "warning": [ExperienceEntry(*row) for row in state["zones"]["warning"]],
        }
        self.edges = {name: dict(counts) for name, counts in state["edges"].items()}
        self.edge_states = {name: dict(counts) for name, counts in state.get("edge_states", {}).items()}
        self.steps = state["steps"]

    def metrics(self) -> dict[str, float]:
        """Return the number of stored entries of each zone, `golden` and `warning`."""
        return {name: float(len(entries)) for name, entries in self.zones.items()}


def _edge_state(tool: str, observation: str) -> str:
    return f"{tool}\n{get_cluster(observation)}"
