"""Adapters for custom rewards: plain numbers as scores, and reward functions with the signature of TRL or verl.

    async def f(trajectory, task) -> Score | float | bool          Whetstone
    def f(prompts, completions, answer, **kwargs) -> list[float]   TRL: lists of one element, and columns of the task
    def f(data_source, solution_str, ground_truth, extra_info) -> float | dict      verl

The signature is recognized by its parameter names. A function of TRL or verl is called with one episode. A number of 1
or more counts as success.

Source: https://huggingface.co/docs/trl/grpo_trainer (custom reward functions),
https://verl.readthedocs.io/en/latest/preparation/reward_function.html.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Protocol

from whetstone.capabilities import implements_protocol
from whetstone.errors import RecipeError
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Score, Task, Trajectory

_FORMS = (
    "a reward is async def f(trajectory, task) -> float or Score; signatures of TRL (completions, **kwargs) and verl "
    "(data_source, solution_str, ground_truth, extra_info) are accepted too"
)
_RETURNS = "return a number, or Score(value, success=…), or Score.unknown(why) if the episode cannot be scored"


class _Array(Protocol):
    """Number or array of NumPy or PyTorch."""

    ndim: int

    def item(self) -> Any:
        """Return the only element as a Python number."""
        ...


def to_score(value: Any, name: str = "it") -> Score:
    """Convert the value that a reward function returned to a `Score`.

    A number of 1 or more, or True, counts as success.

    Args:
        value: A Score, or a number or boolean of Python, NumPy or PyTorch.
        name: Name of the reward in messages.

    Raises:
        TypeError: If the value is neither a score nor a number.
        ValueError: If the number is not finite.
    """
    if isinstance(value, Score):
        return value
    number = value.item() if implements_protocol(value, _Array) and value.ndim == 0 else value
    if isinstance(number, bool):
        return Score(float(number), success=number)
    if isinstance(number, Real):
        number = float(number)
        if not math.isfinite(number):
            raise ValueError(f"{name} returned {number}; {_RETURNS}")
        return Score(number, success=number >= 1)
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:59]}…"
    if isinstance(value, list | tuple) or implements_protocol(value, _Array):
        raise TypeError(f"{name} returned {text}, and a reward scores one episode; {_RETURNS}")
    raise TypeError(f"{name} returned {text}; {_RETURNS}")


def adapt_reward(reward: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap a custom reward as an async function of (trajectory, task) that returns a `Score`.

    Args:
        reward: Function, or object with `__call__`, in one of the forms of this module; options are already bound.
        name: Name of the reward in messages.

    Raises:
        RecipeError: If the parameters fit none of the forms.
    """
    try:
        signature = inspect.signature(reward)
    except (TypeError, ValueError):
        return reward
    names = set(signature.parameters)
    arguments = _trl_arguments if "completions" in names else _verl_arguments if "solution_str" in names else None
    if arguments is None:
        try:
            signature.bind(None, None)
        except TypeError:
            raise RecipeError(f'reward "{name}" takes {signature}; {_FORMS}') from None

    async def score(trajectory: Trajectory, task: Task) -> Score:
        if arguments is None:
            return to_score(await call_user_function(reward, trajectory, task), name)
        values = _bound(signature, arguments(trajectory, task), name, task)
        return _score_of(await call_user_function(reward, **values), name)

    wrapped = reward.func if isinstance(reward, functools.partial) else reward
    for attribute in ("provides", "private"):
        if hasattr(wrapped, attribute):
            setattr(score, attribute, getattr(wrapped, attribute))
    return score


def signature_of_library(reward: Callable[..., Any]) -> bool:
    """Return whether a reward function has the signature of TRL or verl."""
    return bool({"completions", "solution_str"} & set(inspect.signature(reward).parameters))


def _bound(signature: inspect.Signature, values: Mapping[str, Any], name: str, task: Task) -> dict[str, Any]:
    """Select the arguments that a reward function of TRL or verl takes.

    Raises:
        TypeError: If the function requires an argument that the task does not have.
    """
    parameters = signature.parameters.values()
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    for each in parameters:
        is_required = each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        if is_required and each.name not in values:
            available = ", ".join(map(str, task.private)) or "nothing"
            raise TypeError(
                f"{name} reads {each.name}, which the task does not have (its private data has {available})"
            )
    return {key: value for key, value in values.items() if takes_all or key in signature.parameters}


def _trl_arguments(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    """Return the arguments of a TRL reward function for one episode: lists with one element each."""
    if task.messages:
        prompt: Any = [message.to_openai() for message in task.messages]
        completion: Any = [
            message.to_openai() for turn in trajectory.turns for message in (turn.message, *turn.observation)
        ]
    else:
        prompt, completion = task.prompt, final_answer(trajectory) or ""
    ids = [token for turn in trajectory.turns for token in turn.action.ids]
    columns = {str(key): [value] for key, value in task.private.items()}
    return {
        **columns, "prompts": [prompt], "completions": [completion], "completion_ids": [ids], "trainer_state": None,
        "log_extra": lambda *_: None, "log_metric": lambda *_: None,
    }  # fmt: skip


def _verl_arguments(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    private = task.private
    return {
        "data_source": private.get("data_source", task.tags.get("kind", "")),
        "solution_str": final_answer(trajectory) or "",
        "ground_truth": private.get("ground_truth", private.get("answer")),
        "extra_info": private.get("extra_info", dict(private)),
    }


def _score_of(value: Any, name: str) -> Score:
    """Convert the value of a TRL function (list of one number) or verl function (number or mapping) to a `Score`."""
    if isinstance(value, Mapping):
        if "score" not in value:
            raise TypeError(f'{name} returned a mapping without "score"; return a number or {{"score": number, …}}')
        others = {str(key): each for key, each in value.items() if key != "score" and isinstance(each, Real)}
        score, solved = to_score(value["score"], name), value.get("acc")
        success = bool(solved) if isinstance(solved, Real) else score.success
        return Score(score.value, {key: float(each) for key, each in others.items()}, success=success)
    is_vector = implements_protocol(value, _Array) and value.ndim == 1
    if isinstance(value, list | tuple) or is_vector:
        rewards = list(value)
        if len(rewards) != 1:
            raise TypeError(f"{name} returned {len(rewards)} rewards for one completion; return one per completion")
        (value,) = rewards
        if value is None:
            return Score.unknown(f"{name} returned None: it does not apply to this task")
    return to_score(value, name)
