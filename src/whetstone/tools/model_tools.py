"""Language models as tools: each of a recipe's `models` can be called, at its price.

Note:
    The price of a call is due whatever the model answers; a wrong answer is not refunded.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whetstone.chat import Message, ToolSpec, assistant, user
from whetstone.errors import RecipeError, did_you_mean
from whetstone.seeding import derive_seed
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.protocol import Episode
from whetstone.tools.schema import Tool
from whetstone.tools.thread_runner import call_user_function

ModelResponse = Message | str
"""Response of a model; a text counts as an assistant message without tool calls."""


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """Language model that components call and that is never trained, such as an entry of a recipe's `models`."""

    name: str
    """Name of the model in the recipe."""
    respond: Callable[[Sequence[Message], Sequence[ToolSpec], int], Awaitable[ModelResponse] | ModelResponse]
    """Function (conversation, available tools, seed) → next message of the model; sync or async."""
    price: float = 0.0
    """Price of one call."""
    seconds: float | None = None
    """Latency in seconds, as stated in the tool's description for the policy; None: not stated."""
    skill: str = ""
    """Strengths of the model, in the tool's description."""
    replayable: bool = True
    """Whether the same request returns the same response again."""

    async def answer(
        self, conversation: Sequence[Message], *, tools: Sequence[ToolSpec] = (), seed: int = 0
    ) -> Message:
        """Return the next message of the model in a conversation.

        Args:
            conversation: Messages so far.
            tools: Tools that the model may call.
            seed: Seed of the sampling.

        Raises:
            InfrastructureError: If the model cannot be reached.
        """
        response = await call_user_function(self.respond, conversation, tools, seed)
        return assistant(response) if isinstance(response, str) else response

    @property
    def description(self) -> str:
        """Strengths, price and latency of the model, in one line."""
        takes = f" Takes about {self.seconds:g} s." if self.seconds is not None else ""
        skill = f" {self.skill.rstrip('.')}." if self.skill else ""
        return f"Ask the model {self.name}.{skill} Costs {self.price:g}.{takes}"


def find_model(models: Mapping[str, FrozenModel] | None, name: str) -> FrozenModel:
    """Return the model with this name among the models of a recipe.

    Raises:
        RecipeError: If there is no model of this name.
    """
    if name not in (models or {}):
        known = ", ".join(models or {}) or "none; add them under `models:`"
        raise RecipeError(f'no model named "{name}"{did_you_mean(name, models or {})}; models: {known}')
    return (models or {})[name]


class Models:
    """Tools `ask_NAME`, one for each of the recipe's `models`.

    Args:
        models: Models by name; filled in from the recipe.
        include: Names of the models to include; empty: all.
        question: Source of the request: `policy`, an argument of the call; or `task`, the prompt of the task.

    Raises:
        RecipeError: If the recipe has no models, or none of a name in `include`.
    """

    effects = "read"

    def __init__(
        self,
        *,
        models: Mapping[str, FrozenModel] | None = None,
        include: Sequence[str] = (),
        question: Literal["policy", "task"] = "policy",
    ) -> None:
        if not models:
            raise RecipeError("models: the recipe has no models; add them under `models:`")
        self.models = [find_model(models, name) for name in include or models]
        self.question = question
        self.replayable = all(model.replayable for model in self.models)
        self._prices = {f"ask_{model.name}": model.price for model in self.models}
        self._episode: Episode | None = None
        self._asked = 0

    def open(self, episode: Episode) -> None:
        """Store the episode, and restart the numbering of its calls."""
        self._episode, self._asked = episode, 0

    def tools(self) -> list[Tool]:
        """Return one tool per model."""
        question = {"question": {"type": "string", "description": "Everything the model needs to know."}}
        own = self.question == "policy"
        schema = {"type": "object", "properties": question if own else {}, "required": list(question) if own else []}
        return [
            tool_from_schema(
                ToolSpec(f"ask_{model.name}", model.description, schema), functools.partial(self._answer, model)
            )
            for model in self.models
        ]

    def charge(self, name: str) -> tuple[str, float]:
        """Return the price of a call of a model; no call is refused. See `HasCost`."""
        return "", self._prices.get(name, 0.0)

    async def _answer(self, model: FrozenModel, arguments: dict[str, Any]) -> str:
        assert self._episode is not None
        self._asked += 1
        prompt = str(arguments.get("question", self._episode.task.prompt))
        seed = derive_seed(self._episode.seed, model.name, self._asked)
        return (await model.answer([user(prompt)], seed=seed)).text
