"""Finds demonstrations that the policy cannot reproduce, because sampled answers or episodes are limited in length.

Note:
    An answer that is longer than `rollout.max_new_tokens` is trained, but every sampled answer is cut before its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from whetstone.recipe import Recipe
from whetstone.trajectory import Author, Trajectory, Turn


class LimitProblem(NamedTuple):
    """One limit of the policy that some demonstrations exceed."""

    text: str
    """Number of demonstrations, the limit, and the largest value with its place."""
    remedy: str
    """Recipe key to set, or change of the data."""

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}"


@dataclass(slots=True)
class PolicyLimits:
    """Counts the demonstrations that exceed the limits of a recipe on sampled answers."""

    max_new_tokens: int
    """Maximum number of tokens per answer (`rollout.max_new_tokens`)."""
    max_turns: int
    """Maximum number of turns per episode (`environment.max_turns`)."""
    count: int = 0
    """Number of demonstrations that were compared."""
    num_long: int = 0
    """Number of demonstrations with an answer of more than `max_new_tokens`."""
    longest: tuple[int, str] = (0, "")
    """(tokens, demonstration) of the longest answer."""
    num_many: int = 0
    """Number of demonstrations with more than `max_turns`."""
    most_turns: tuple[int, str] = (0, "")
    """(turns, demonstration) of the demonstration with the most turns."""

    @classmethod
    def of_recipe(cls, recipe: Recipe) -> PolicyLimits:
        """Read both limits from a recipe; no demonstration is counted yet."""
        return cls(recipe.rollout.max_new_tokens, recipe.environment.max_turns)

    def add(self, demonstrations: Iterable[Trajectory]) -> PolicyLimits:
        """Compare demonstrations with the limits, and count those that exceed them.

        Demonstrations without a turn are ignored.

        Returns:
            The object itself, so that calls can be chained.
        """
        for each in demonstrations:
            turns = [turn for turn in each.turns if not turn.aside]
            if not turns:
                continue
            self.count += 1
            tokens = max((len(turn.action) for turn in turns if _is_imitated(turn)), default=0)
            self.num_long += tokens > self.max_new_tokens
            self.longest = max(self.longest, (tokens, each.id), key=lambda value: value[0])
            self.num_many += len(turns) > self.max_turns
            self.most_turns = max(self.most_turns, (len(turns), each.id), key=lambda value: value[0])
        return self

    def find_problems(self, key: str) -> list[LimitProblem]:
        """Return one problem per limit that at least one demonstration exceeds.

        Args:
            key: Recipe key of the demonstrations.
        """
        problems = []
        if self.num_long:
            tokens, place = self.longest
            text = (
                f"{key}: {self.num_long:,} of {self.count:,} demonstrations have an answer that the policy cannot "
                f"produce: rollout.max_new_tokens is {self.max_new_tokens:,}, and the longest answer has {tokens:,} "
                f"tokens ({place})"
            )
            problems.append(LimitProblem(text, f"set rollout.max_new_tokens={tokens}, or shorten the answers"))
        if self.num_many:
            turns, place = self.most_turns
            text = (
                f"{key}: {self.num_many:,} of {self.count:,} demonstrations have more turns than an episode of the "
                f"policy: environment.max_turns is {self.max_turns:,}, and the longest demonstration has {turns:,} "
                f"turns ({place})"
            )
            problems.append(LimitProblem(text, f"set environment.max_turns={turns}, or shorten the demonstrations"))
        return problems

    def to_json(self) -> dict[str, Any]:
        """Return limit, number of demonstrations beyond it, and largest value, by recipe key of the limit."""
        long = {"limit": self.max_new_tokens, "exceeded_by": self.num_long, "most": self.longest[0]}
        many = {"limit": self.max_turns, "exceeded_by": self.num_many, "most": self.most_turns[0]}
        return {"rollout.max_new_tokens": long, "environment.max_turns": many}


def _is_imitated(turn: Turn) -> bool:
    """Return whether the action is an example for the policy, and not text that was inserted."""
    return any(author is not Author.INSERTED for author in turn.action.authors)
