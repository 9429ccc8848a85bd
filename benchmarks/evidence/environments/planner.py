"""Multi-step questions with a trained planner and frozen executors: two environments for `planner`.

`Chains`: "boss of the mother of ann" requires two lookups, the inner one first. A scripted executor runs the lookup of
a plan, a verifier stops after all relations were looked up, and a generator answers with the last result. The warm-up
mostly shows the wrong order, so that only plans must improve.

`Clues`: each lookup returns a clue and has a cost; a frozen answerer is right if the number of clues is at least the
difficulty of the question, which the planner does not observe. The best number of lookups depends on their cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from whetstone.algorithms.advantages import flow_grpo
from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.seeding import derive_random
from whetstone.trajectory import Task

NAMES = ("ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal")
RELATIONS = ("boss", "mother", "friend")
HARDEST = 3
"""Number of clues with which every question of `Clues` is answered."""


def look_up(relation: str, name: str) -> str:
    """Who is the boss, mother or friend of whom.

    Args:
        relation: boss, mother or friend.
        name: Of whom.
    """
    if relation not in RELATIONS or name not in NAMES:
        return "unknown"
    others = [other for other in NAMES if other != name]
    return derive_random("family", relation, name).choice(others)


class _Source:
    """Base of task sources whose held-out tasks do not depend on the seed."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def task(self, index: int) -> Task:
        """Return training question `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """Return held-out questions, which do not depend on the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def _task(self, *place: Any) -> Task:
        raise NotImplementedError


class Chains(_Source):
    """Questions about two or three relations of a person.

    Args:
        astray: Probability that the outermost relation is looked up first and counts as right; for demonstrations,
            because only successful ones are imitated.
    """

    def __init__(self, *, seed: int = 0, astray: float = 0.0) -> None:
        super().__init__(seed=seed)
        self.astray = astray

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next relation, in the order that counts as right."""
        answers = [message.text for message in conversation if message.role == "user"][1:]
        name = answers[-1] if answers else task.prompt.split()[-1]
        return assistant(f"{task.private['order'][len(answers)]} {name}")

    def _task(self, *place: Any) -> Task:
        draw = derive_random("chains", *place)
        relations, name = draw.sample(RELATIONS, draw.choice((2, 3))), draw.choice(NAMES)
        order = relations if draw.random() < self.astray else relations[::-1]
        answer = name
        for relation in order:
            answer = look_up(relation, answer)
        private = {"answer": answer, "order": order}
        where = "/".join(map(str, place))
        return Task(f"chains/{where}", " ".join([*relations, name]), private, {"kind": str(len(relations))})


def executor(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> Message:
    """Look up the relation and name of a plan, if it has both."""
    plan = conversation[-1].text.rpartition("plan: ")[2].split()
    if len(plan) != 2:
        return assistant("unknown")
    relation, name = plan
    return assistant("", ToolCall("look_up", f'{{"relation": "{relation}", "name": "{name}"}}'))


def verifier(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Return "stop" once the number of lookups equals the number of relations."""
    question, *done = conversation[-1].text.splitlines()
    return "stop" if len(done) >= len(question.split()) - 1 else "go on"


def generator(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Answer with the last result."""
    return conversation[-1].text.rpartition(" -> ")[2]


def last_turn(outcomes: PerTrajectory, group: PerTrajectory, trajectory: PerTurn) -> PerTurn:
    """Compute advantages as `flow_grpo` does, with the outcome only for the last turn of an episode."""
    credit = flow_grpo(outcomes, group, trajectory)
    last = torch.ones_like(trajectory, dtype=torch.bool)
    last[:-1] = trajectory[1:] != trajectory[:-1]
    return torch.where(last, credit, torch.zeros_like(credit))


class Clues(_Source):
    """Questions that require none, one, two or three clues with equal probability.

    Args:
        hardest: Maximum number of clues; at 0, for demonstrations, any number of lookups is right.
    """

    def __init__(self, *, seed: int = 0, hardest: int = HARDEST) -> None:
        super().__init__(seed=seed)
        self.hardest = hardest

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next of a uniformly random number of lookups."""
        num_made = sum(message.role == "assistant" for message in conversation)
        num_wanted = derive_random("clues wanted", task.id).randrange(HARDEST + 1)
        return assistant("?" if num_made < num_wanted else "!")

    def _task(self, *place: Any) -> Task:
        draw = derive_random("clues", *place)
        where = "/".join(map(str, place))
        while hard_is(word := f"{draw.choice(NAMES)} {draw.randrange(10, 100)}") > self.hardest:
            pass
        return Task(f"clues/{where}", word, {"answer": answer_to(word)}, {"kind": str(hard_is(word))})


def hard_is(question: str) -> int:
    """Return the number of clues that a question requires."""
    return derive_random("hard", question).randrange(HARDEST + 1)


def answer_to(question: str) -> str:
    """Return the answer of a question of `Clues`."""
    return str(derive_random("clue", question).randrange(100, 1000))


def searcher(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Return a clue for the plan `?`."""
    return "clue" if conversation[-1].text.rpartition("plan: ")[2] == "?" else "nothing"


def answerer(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Answer correctly if the number of clues is at least the difficulty of the question."""
    question, *done = conversation[-1].text.splitlines()
    clues = sum(line.endswith("-> clue") for line in done)
    return answer_to(question) if clues >= hard_is(question) else "unknown"
