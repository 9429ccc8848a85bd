"""Arithmetic nobody does in the head: products of three-digit numbers, in one to three calculator calls.

Every kind needs at least one three-digit product, so an agent without a calculator gets next to nothing
right; and each kind is a fixed chain of single operations, so an expert can be scripted.

Easy to get wrong: a held-out task must not turn up in training. Which side an expression falls on is
decided by the expression itself, not by a draw, so it holds for every seed and every number of tasks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.errors import did_you_mean
from whetstone.plugins import OptionError
from whetstone.seeding import derive_random, derive_seed
from whetstone.tools.arithmetic import evaluate, shown
from whetstone.trajectory import Task


@dataclass(frozen=True, slots=True)
class Problem:
    """An expression and the single operations that lead to its value."""

    expression: str
    steps: tuple[str, ...]
    """Each one operation; `{0}` stands for the result of step 0."""


def _numbers(draw: random.Random, count: int, digits: int) -> list[int]:
    return [draw.randint(10 ** (digits - 1), 10**digits - 1) for _ in range(count)]


def _sum(draw: random.Random, a: int, b: int) -> str:
    """`a+b` or `a-b`, never below zero."""
    return f"{a}+{b}" if draw.random() < 0.5 else f"{max(a, b)}-{min(a, b)}"


def _product(draw: random.Random, digits: int) -> Problem:
    a, b = _numbers(draw, 2, digits)
    return Problem(f"{a}*{b}", (f"{a}*{b}",))


def _product_then_sum(draw: random.Random, digits: int) -> Problem:
    a, b, c = _numbers(draw, 3, digits)
    sign = draw.choice("+-")
    return Problem(f"{a}*{b}{sign}{c}", (f"{a}*{b}", f"{{0}}{sign}{c}"))


def _sum_then_product(draw: random.Random, digits: int) -> Problem:
    a, b, c = _numbers(draw, 3, digits)
    inner = _sum(draw, a, b)
    return Problem(f"({inner})*{c}", (inner, f"{{0}}*{c}"))


def _product_of_sums(draw: random.Random, digits: int) -> Problem:
    a, b, c, d = _numbers(draw, 4, digits)
    left, right = _sum(draw, a, b), _sum(draw, c, d)
    return Problem(f"({left})*({right})", (left, right, "{0}*{1}"))


def _sum_product_sum(draw: random.Random, digits: int) -> Problem:
    a, b, c, d = _numbers(draw, 4, digits)
    inner, sign = _sum(draw, a, b), draw.choice("+-")
    return Problem(f"({inner})*{c}{sign}{d}", (inner, f"{{0}}*{c}", f"{{1}}{sign}{d}"))


def _sum_of_products(draw: random.Random, digits: int) -> Problem:
    a, b, c, d = _numbers(draw, 4, digits)
    sign = draw.choice("+-")
    return Problem(f"{a}*{b}{sign}{c}*{d}", (f"{a}*{b}", f"{c}*{d}", f"{{0}}{sign}{{1}}"))


def _calls(problem: Problem) -> list[dict[str, Any]]:
    """The calls an expert makes, whatever the tool is called."""
    results: list[str] = []
    calls = []
    for step in problem.steps:
        expression = step.format(*results)
        results.append(shown(evaluate(expression)))
        calls.append({"arguments": {"expression": expression}})
    return calls


KINDS: dict[str, Callable[[random.Random, int], Problem]] = {
    "product": _product,
    "product_then_sum": _product_then_sum,
    "sum_then_product": _sum_then_product,
    "product_of_sums": _product_of_sums,
    "sum_product_sum": _sum_product_sum,
    "sum_of_products": _sum_of_products,
}
_HINTS = {
    "product": "One call does it.",
    "product_then_sum": "Multiply first, then add or subtract.",
    "sum_then_product": "The bracket first, then multiply.",
    "product_of_sums": "Both brackets first, then multiply.",
    "sum_product_sum": "The bracket first, then multiply, then the rest.",
    "sum_of_products": "Both products first, then add or subtract.",
}
_RUBRIC = (
    {"criterion": "It calls the calculator for each operation.", "rule": "called_as_often"},
    {"criterion": "It answers with the last result as it came.", "rule": "number_was_read"},
    {"criterion": "Its answer is the right number.", "points": 2, "rule": "right_number"},
    {"criterion": "It guesses a number without a call.", "points": -1, "rule": "no_call"},
)
_HELD_OUT_SHARE = 10
"""One expression in so many is held out."""


class Arithmetic:
    """Generated arithmetic, tagged by kind and by the number of operations it takes.

    Args:
        seed: Another seed, other training tasks; which expressions are held out does not depend on it.
        digits: Digits of each number, 1 to 6.
        kinds: How often each kind is drawn for training, relative to the others. Held-out tasks go round all
            kinds named here with a weight above zero, each as often as the other.

    Raises:
        OptionError: An unknown kind, a negative weight, or no kind at all.
    """

    def __init__(self, *, seed: int = 0, digits: int = 3, kinds: Mapping[str, float] | None = None) -> None:
        weights = dict.fromkeys(KINDS, 1.0) if kinds is None else dict(kinds)
        for kind, weight in weights.items():
            if kind not in KINDS:
                raise OptionError("kinds", f'no kind of arithmetic named "{kind}"{did_you_mean(kind, KINDS)}')
            if weight < 0:
                raise OptionError(f"kinds.{kind}", f"a weight is zero or more, got {weight:g}")
        self.weights = {kind: weight for kind, weight in weights.items() if weight > 0}
        if not self.weights:
            raise OptionError("kinds", "every weight is zero, so there is nothing to draw")
        if not 1 <= digits <= 6:
            raise OptionError("digits", f"1 to 6, got {digits}")
        self.seed, self.digits = seed, digits

    def task(self, index: int) -> Task:
        """Training task `index`: the kind drawn by weight, the numbers by chance."""
        draw = derive_random(self.seed, "arithmetic", "training", index)
        (kind,) = draw.choices(list(self.weights), list(self.weights.values()))
        return self._draw(draw, kind, held_out=False)

    def held_out(self, count: int) -> list[Task]:
        """The same tasks whatever the seed."""
        kinds = list(self.weights)
        chosen: dict[str, Task] = {}
        attempt = 0
        while len(chosen) < count and attempt < 20 * count:
            draw = derive_random("arithmetic", "held out", self.digits, attempt)
            task = self._draw(draw, kinds[len(chosen) % len(kinds)], held_out=True)
            chosen.setdefault(task.id, task)
            attempt += 1
        return list(chosen.values())

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """One operation a turn, each on the results read so far; without a tool, the answer at once."""
        results = [message.text for message in conversation if message.role == "tool"]
        steps: Sequence[str] = task.private["steps"]
        if tools and len(results) < len(steps):
            tool = next(tool for tool in tools if tool.only_text_parameter)
            expression = steps[len(results)].format(*results)
            call = ToolCall(tool.name, json.dumps({tool.only_text_parameter: expression}))
            return assistant("", call)
        return assistant(results[-1] if tools else str(task.private["answer"]))

    def _draw(self, draw: random.Random, kind: str, *, held_out: bool) -> Task:
        while True:
            problem = KINDS[kind](draw, self.digits)
            if (derive_seed("held out", problem.expression) % _HELD_OUT_SHARE == 0) == held_out:
                break
        answer = shown(evaluate(problem.expression))
        tags = {"kind": kind, "difficulty": str(len(problem.steps))}
        private = {
            "answer": answer,
            "steps": problem.steps,
            "calls": _calls(problem),
            "hint": _HINTS[kind],
            "rubric": _RUBRIC,
            "expert_turns": len(problem.steps) + 1,
        }
        return Task(f"arithmetic/{problem.expression}", f"Compute {problem.expression}", private, tags)
