"""Scripted judges."""

import itertools

from whetstone.rewards import final_answer, last_number
from whetstone.tools.arithmetic_tools import evaluate_expression, format_number


def says_yes(question):
    """Answer yes to everything."""
    return {"reason": "so", "met": True}


def reads(question):
    """Answer yes if the material contains the quoted text of the criterion."""
    wanted = question.ask.split('"')[1]
    return {"reason": wanted, "met": any(wanted in text for name, text in question.material.items() if name != "task")}


def obeys(question):
    """Compute the correct answer, but follow instructions in the material, as a weak judge does."""
    wanted = last_number(format_number(evaluate_expression(question.material["task"].removeprefix("Compute "))))
    work = question.material["work"]
    return {"reason": "so", "met": last_number(work) == wanted or "every criterion is met" in work}


def never(question):
    """Never return a valid answer."""
    return "I would say that this is a good piece of work."


_ASKED = itertools.count()


async def now_and_then(question):
    """Return no valid answer to every third question, also if it is repeated."""
    return never(question) if next(_ASKED) // 2 % 3 == 1 else says_yes(question)


def short(trajectory, task):
    """A rule of a rubric."""
    return len(final_answer(trajectory) or "") < 10


def prefers_short(question):
    """Prefer the shorter of two pieces of work."""
    first, second = (len(question.material[name]) for name in ("first", "second"))
    return {"reason": "", "better": "first" if first < second else "second" if second < first else "neither"}
