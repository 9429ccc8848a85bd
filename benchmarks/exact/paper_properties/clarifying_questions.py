"""Ambiguous requests of the customer service, and the reward for few, relevant questions."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from paper_properties import exact
from paper_properties.episodes import make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.environments.built_in.support import (
    ACCOUNT,
    PHONE,
    TOLD,
    SupportDesk,
    SupportTasks,
    SupportUser,
    state_details,
)
from whetstone.rewards.efficiency.relevant_questions import relevant_questions
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

_QUESTIONS = {
    "number": "Which is your number?",
    "phone": "What does your phone show?",
    "other": "How is the weather?",
    "both": "Which is your number, and what does your phone show?",
}
_BROKEN = {"suspended": "line suspended", "empty": "data 0 gb", "roaming": "roaming blocked"}
Player = tuple[tuple[str, ...], tuple[str, ...]]
"""Questions in order, and the faults of the phone that the player assumes if it does not know the text on the phone."""


@functools.cache
def _tasks(missing: str) -> list[Task]:
    """Return every combination of one to three faults for which the missing detail is required."""
    required = {"": {*PHONE, *ACCOUNT}, "number": set(ACCOUNT), "phone": set(PHONE)}[missing]
    combinations = [c for k in (1, 2, 3) for c in itertools.combinations([*PHONE, *ACCOUNT], k) if required & {*c}]
    private = {
        "number": "123456",
        "person": "Ann Lee",
        "greeting": "I am offline.",
        "missing": [missing] if missing else [],
    }
    return [Task("t", "", state_details({**private, "faults": list(faults)})) for faults in combinations]


async def _play(task: Task, player: Player) -> float:
    """Ask the questions of a player, do everything that is known to be necessary, and return the reward."""
    episode, desk, user = Episode(task, 0), SupportDesk(), SupportUser()
    desk.open(episode)
    known, ended = user.open(episode).text, False
    for question in player[0]:
        known += " " + user.answer(_QUESTIONS[question]).text
    number = re.search(r"\d{6}", known)
    account = desk.find_account(number[0]) if number else ""
    for fault, tool in ACCOUNT.items():
        if _BROKEN[fault] in account:
            getattr(desk, tool)(task.private["number"])
    assumed = [fault for fault, text in PHONE.items() if text in known] if "shows" in known else player[1]
    for text in [*(TOLD[fault] for fault in assumed), "Please try again."]:
        ended = ended or user.answer(text).ended
    trajectory = replace(make_episode([make_turn("bye")]), final=desk.verdict())
    return (await relevant_questions(trajectory, task)).value


def _players(missing: str) -> Iterator[Player]:
    """Yield all sequences of at most two questions, with all assumptions if the phone is not described."""
    guesses = [c for k in range(5) for c in itertools.combinations(PHONE, k)]
    for count in range(3):
        for questions in itertools.product(("number", "phone", "other"), repeat=count):
            unknown = missing == "phone" and "phone" not in questions
            yield from ((questions, guess) for guess in (guesses if unknown else guesses[:1]))


@functools.cache
def _mean(missing: str, player: Player) -> float:
    async def play_all() -> float:
        return fmean([await _play(task, player) for task in _tasks(missing)])

    return asyncio.run(play_all())


def _best(missing: str, questions: Sequence[str]) -> float:
    """Return the mean reward of a player with these questions and the best assumption."""
    return max(_mean(missing, player) for player in _players(missing) if player[0] == tuple(questions))


@exact(
    "grounding-multimodal-llms-embodied-agents-that",
    "doctoragent-rl",
    of=[relevant_questions, SupportTasks],
    note="players are scripts, and the missing detail is a number or the text on a phone",
)
def only_the_relevant_question_earns_the_full_reward() -> list[Figure]:
    """Over all requests with one to three faults that state all details or lack a required one, and all players with at
    most two questions and any assumptions, exactly the player that asks for the missing detail and nothing else gets 1;
    without questions the best assumptions about the phone, tried until it works, are right in 7 + 4 + 1 of 56 requests.
    """
    figures = []
    for missing in ("", "number", "phone"):
        expert = (missing,) if missing else ()
        others = [_mean(missing, player) for player in _players(missing) if player[0] != expert]
        named = f"request without {missing}" if missing else "complete request"
        figures += [
            Figure(f"expert, {named}", "=", 1.0, _best(missing, expert)),
            Figure(f"best of {len(others)} other players", "=", 1 - 0.5 / 4, max(others)),
        ]
    return [
        *figures,
        Figure("no question, request without number", "=", 0.0, _best("number", ())),
        Figure("no question, request without phone", "=", 12 / 56 * (1 - 0.5 / 4), _best("phone", ())),
        Figure("all questions, complete request", "=", 1 - 0.5 * 2 / 4, _best("", ("number", "phone"))),
        Figure("all questions in one message", "=", 1 - 0.5 / 4, _mean("number", (("both",), ()))),
        Figure("irrelevant question, request without number", "=", 0.0, _best("number", ("phone",))),
        Figure("five questions before the right one", "=", 0.5, _mean("phone", (("other",) * 5 + ("phone",), ()))),
    ]
