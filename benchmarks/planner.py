"""Questions that take several steps, which a planner plans and frozen models carry out: two worlds for `planner`.

`Chains`: "boss of the mother of ann" takes two look-ups, the inner one first. A scripted executor looks up what a plan
says, a verifier stops when every relation was looked up, a generator answers with what came last. The warm-up shows
the wrong order most of the time, so only plans have to become better.

`Clues`: each look-up brings a clue and costs; a frozen answerer is right as soon as it has as many clues as the
question is hard, which the planner cannot see. How many are worth it depends on what they cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from whetstone.algorithms.advantages import flow_grpo
from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.seeding import derive_random
from whetstone.trajectory import Task

NAMES = ("ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal")
RELATIONS = ("boss", "mother", "friend")
HARDEST = 3
"""Clues that every question of `Clues` is answered with."""


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
    """Training tasks by their number, held-out ones the same whatever the seed."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def task(self, index: int) -> Task:
        """Training question `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """The same whatever the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def _task(self, *place: Any) -> Task:
        raise NotImplementedError


class Chains(_Source):
    """Two or three relations of a person.

    Args:
        astray: How often the outermost relation is looked up first, and counts as right; for demonstrations, of which
            those alone are imitated that are right.
    """

    def __init__(self, *, seed: int = 0, astray: float = 0.0) -> None:
        super().__init__(seed=seed)
        self.astray = astray

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next relation, in the order that counts as right."""
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
    """Looks up what a plan says, where it says a relation and a name."""
    plan = conversation[-1].text.rpartition("plan: ")[2].split()
    if len(plan) != 2:
        return assistant("unknown")
    relation, name = plan
    return assistant("", ToolCall("look_up", f'{{"relation": "{relation}", "name": "{name}"}}'))


def verifier(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Says stop when as many look-ups were made as there are relations."""
    question, *done = conversation[-1].text.splitlines()
    return "stop" if len(done) >= len(question.split()) - 1 else "go on"


def generator(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Answers with what came last."""
    return conversation[-1].text.rpartition(" -> ")[2]


def last_turn(outcomes: PerTrajectory, group: PerTrajectory, trajectory: PerTurn) -> PerTurn:
    """As `flow_grpo`, with the outcome for the last turn of an episode alone."""
    credit = flow_grpo(outcomes, group, trajectory)
    last = torch.ones_like(trajectory, dtype=torch.bool)
    last[:-1] = trajectory[1:] != trajectory[:-1]
    return torch.where(last, credit, torch.zeros_like(credit))


class Clues(_Source):
    """Questions that take none, one, two or three clues, as often each.

    Args:
        hardest: The most clues a question takes; at 0, for demonstrations, any number of look-ups is right.
    """

    def __init__(self, *, seed: int = 0, hardest: int = HARDEST) -> None:
        super().__init__(seed=seed)
        self.hardest = hardest

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Any number of look-ups, none as often as all."""
        made = sum(message.role == "assistant" for message in conversation)
        wanted = derive_random("clues wanted", task.id).randrange(HARDEST + 1)
        return assistant("?" if made < wanted else "!")

    def _task(self, *place: Any) -> Task:
        draw = derive_random("clues", *place)
        where = "/".join(map(str, place))
        while hard_is(word := f"{draw.choice(NAMES)} {draw.randrange(10, 100)}") > self.hardest:
            pass
        return Task(f"clues/{where}", word, {"answer": answer_to(word)}, {"kind": str(hard_is(word))})


def hard_is(question: str) -> int:
    """How many clues a question takes."""
    return derive_random("hard", question).randrange(HARDEST + 1)


def answer_to(question: str) -> str:
    """The number that answers a question of `Clues`."""
    return str(derive_random("clue", question).randrange(100, 1000))


def searcher(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Brings a clue for the plan to search, `?`."""
    return "clue" if conversation[-1].text.rpartition("plan: ")[2] == "?" else "nothing"


def answerer(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Right as soon as there are as many clues as the question is hard."""
    question, *done = conversation[-1].text.splitlines()
    clues = sum(line.endswith("-> clue") for line in done)
    return answer_to(question) if clues >= hard_is(question) else "unknown"
