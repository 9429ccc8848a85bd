"""Generated arithmetic that requires a calculator: products of three-digit numbers, in one to three calls.

Every kind contains at least one three-digit product, so that an agent without a calculator rarely succeeds. Each kind
is a fixed chain of single operations, so that an expert can be scripted.

Note:
    A held-out task must not occur in training. The expression itself determines whether it is held out, independent of
    the seed and the number of tasks.
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
from whetstone.tools.arithmetic_tools import evaluate_expression, format_number
from whetstone.trajectory import Task


@dataclass(frozen=True, slots=True)
class Problem:
    """Arithmetic expression and the single operations that lead to its value."""

    expression: str
    """The expression, such as `(12+34)*56`."""
    steps: tuple[str, ...]
    """Operations in order; `{0}` is replaced by the result of step 0."""


def _numbers(draw: random.Random, count: int, digits: int) -> list[int]:
    """Return `count` random numbers with the given number of digits."""
    return [draw.randint(10 ** (digits - 1), 10**digits - 1) for _ in range(count)]


def _sum(draw: random.Random, a: int, b: int) -> str:
    """Return `a+b` or `a-b` at random, with a result of at least 0."""
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
    """Return the calculator calls of an expert, without the name of the tool."""
    results: list[str] = []
    calls = []
    for step in problem.steps:
        expression = step.format(*results)
        results.append(format_number(evaluate_expression(expression)))
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
"""Generators of problems by kind: (random generator, number of digits) → problem."""
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
_OTHER_OPERATION = str.maketrans("+-*", "**+")
_HELD_OUT_SHARE = 10
"""Number of expressions of which one is held out."""


def _make_wrong(turn: Message) -> Message:
    """Return a call with another operation, or an answer without its last digit."""
    if not turn.tool_calls:
        return assistant(turn.text[:-1])
    call = turn.tool_calls[0]
    return assistant("", ToolCall(call.name, call.arguments.translate(_OTHER_OPERATION)))


class Arithmetic:
    """Task source of generated arithmetic, tagged by kind and number of operations.

    The expert calculates one operation per turn with the calculator.

    Args:
        seed: Determines the training tasks; the held-out expressions do not depend on it.
        digits: Digits of each number, 1 to 6.
        kinds: Relative sampling weight of each kind for training. Held-out tasks cycle through all kinds here with a
            weight above zero, equally often.
        recheck: Probability, 0 to 1, with which the expert repeats a call to check its result. With few turns,
            a policy that imitates a cautious expert runs out of them in long tasks; see `supervised.max_turns`.
        error_rate: Probability, 0 to 1, that a turn of the expert is wrong: a call multiplies instead of adding or the
            reverse, an answer lacks its last digit. Only successful demonstrations are trained on by default; see
            `supervised.solved_only`.

    Raises:
        OptionError: If a kind is unknown, a weight is negative, there is no kind, or `recheck` or `error_rate` is not a
            probability.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        digits: int = 3,
        kinds: Mapping[str, float] | None = None,
        recheck: float = 0.0,
        error_rate: float = 0.0,
    ) -> None:
        weights = dict.fromkeys(KINDS, 1.0) if kinds is None else dict(kinds)
        for kind, weight in weights.items():
            if kind not in KINDS:
                raise OptionError("kinds", f'no kind of arithmetic named "{kind}"{did_you_mean(kind, KINDS)}')
            if weight < 0:
                raise OptionError(f"kinds.{kind}", f"a weight must be zero or more, got {weight:g}")
        self.weights = {kind: weight for kind, weight in weights.items() if weight > 0}
        if not self.weights:
            raise OptionError("kinds", "every weight is zero; set one above zero")
        if not 1 <= digits <= 6:
            raise OptionError("digits", f"must be 1 to 6, got {digits}")
        for option, value in (("recheck", recheck), ("error_rate", error_rate)):
            if not 0 <= value <= 1:
                raise OptionError(option, f"must be a probability from 0 to 1, got {value:g}")
        self.seed, self.digits, self.recheck, self.error_rate = seed, digits, recheck, error_rate

    def task(self, index: int) -> Task:
        """Return training task `index`; its kind is sampled by weight."""
        draw = derive_random(self.seed, "arithmetic", "training", index)
        (kind,) = draw.choices(list(self.weights), list(self.weights.values()))
        return self._sample_task(draw, kind, held_out=False)

    def held_out(self, count: int) -> list[Task]:
        """Return up to `count` distinct held-out tasks, the same for every seed."""
        kinds = list(self.weights)
        chosen: dict[str, Task] = {}
        attempt = 0
        while len(chosen) < count and attempt < 20 * count:
            draw = derive_random("arithmetic", "held out", self.digits, attempt)
            task = self._sample_task(draw, kinds[len(chosen) % len(kinds)], held_out=True)
            chosen.setdefault(task.id, task)
            attempt += 1
        return list(chosen.values())

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the call of the next operation, or the answer after the last operation.

        Without tools, the answer. Some turns are wrong, as `error_rate` sets.
        """
        turn = self._find_right_turn(task, conversation, tools)
        if self.error_rate and derive_random("erring", task.id, len(conversation)).random() >= 1 - self.error_rate:
            return _make_wrong(turn)
        return turn

    def _find_right_turn(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        results = [message.text for message in conversation if message.role == "tool"]
        steps: Sequence[str] = task.private["steps"]
        plan = self._plan(task.id, len(steps))
        if tools and len(results) < len(plan):
            tool = next(tool for tool in tools if tool.only_text_parameter)
            of_steps = dict(zip(plan, results, strict=False))
            expression = steps[plan[len(results)]].format(*of_steps.values())
            call = ToolCall(tool.name, json.dumps({tool.only_text_parameter: expression}))
            return assistant("", call)
        return assistant(results[-1] if tools else str(task.private["answer"]))

    def _plan(self, task_id: str, steps: int) -> list[int]:
        """Return the step of each call of the expert, in order.

        A step whose result the expert checks occurs twice.
        """
        if not self.recheck:
            return list(range(steps))
        draw = derive_random("arithmetic", "recheck", task_id)
        return [step for step in range(steps) for _ in range(2 if draw.random() < self.recheck else 1)]

    def _sample_task(self, draw: random.Random, kind: str, *, held_out: bool) -> Task:
        """Generate a task of a kind on the requested side of the split."""
        while True:
            problem = KINDS[kind](draw, self.digits)
            if (derive_seed("held out", problem.expression) % _HELD_OUT_SHARE == 0) == held_out:
                break
        answer = format_number(evaluate_expression(problem.expression))
        task_id = f"arithmetic/{problem.expression}"
        tags = {"kind": kind, "difficulty": str(len(problem.steps))}
        private = {
            "answer": answer,
            "steps": problem.steps,
            "calls": _calls(problem),
            "hint": _HINTS[kind],
            "rubric": _RUBRIC,
            "expert_turns": len(self._plan(task_id, len(problem.steps))) + 1,
        }
        return Task(task_id, f"Compute {problem.expression}", private, tags)
