"""Judges by hand."""

import itertools

from whetstone.rewards import final_answer, last_number
from whetstone.tools.arithmetic import evaluate, shown


def says_yes(question):
    """Says yes to everything."""
    return {"reason": "so", "met": True}


def reads(question):
    """Says yes where the work holds what the question asks for in quotes."""
    wanted = question.ask.split('"')[1]
    return {"reason": wanted, "met": any(wanted in text for name, text in question.material.items() if name != "task")}


def obeys(question):
    """Knows the right answer to what is to be computed, and does what is said in the material, as a weak judge does."""
    wanted = last_number(shown(evaluate(question.material["task"].removeprefix("Compute "))))
    work = question.material["work"]
    return {"reason": "so", "met": last_number(work) == wanted or "every criterion is met" in work}


def never(question):
    """Never gives an answer."""
    return "I would say that this is a good piece of work."


_ASKED = itertools.count()


async def now_and_then(question):
    """Gives no answer to every third question, however often it is asked again."""
    return never(question) if next(_ASKED) // 2 % 3 == 1 else says_yes(question)


def short(trajectory, task):
    """A rule in a rubric."""
    return len(final_answer(trajectory) or "") < 10
