"""Models as tools: each of a recipe's `models` can be asked, at its price.

Easy to get wrong: what a model costs is paid for asking, whatever it answers; a wrong answer is no refund.
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
from whetstone.tools.threads import call_user_function

Said = Message | str
"""What a model answers; a text is a message without calls."""


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A model that is asked and never trained."""

    name: str
    said: Callable[[Sequence[Message], Sequence[ToolSpec], int], Awaitable[Said] | Said]
    """(conversation, tools it may call, seed) → its next message."""
    price: float = 0.0
    """Of one question."""
    seconds: float | None = None
    """How long it takes, as the policy is told; None: nothing is told."""
    skill: str = ""
    """What it is good at, as the policy is told."""
    replayable: bool = True
    """Whether the same question has the same answer again."""

    async def answer(
        self, conversation: Sequence[Message], *, tools: Sequence[ToolSpec] = (), seed: int = 0
    ) -> Message:
        """Its next message.

        Raises:
            InfrastructureError: It could not be asked.
        """
        said = await call_user_function(self.said, conversation, tools, seed)
        return assistant(said) if isinstance(said, str) else said

    @property
    def description(self) -> str:
        """What it is good at, what it costs and how long it takes, in a line."""
        takes = f" Takes about {self.seconds:g} s." if self.seconds is not None else ""
        skill = f" {self.skill.rstrip('.')}." if self.skill else ""
        return f"Ask the model {self.name}.{skill} Costs {self.price:g}.{takes}"


def model_named(models: Mapping[str, FrozenModel] | None, name: str) -> FrozenModel:
    """One of a recipe's models.

    Raises:
        RecipeError: There is none of this name.
    """
    if name not in (models or {}):
        known = ", ".join(models or {}) or "none; name some under `models:`"
        raise RecipeError(f'there is no model "{name}"{did_you_mean(name, models or {})}; there are {known}')
    return (models or {})[name]


class Models:
    """Each of the recipe's `models` as a tool, `ask_NAME`.

    Args:
        models: By name; filled in from the recipe.
        include: Names of the models to include; empty: all.
        question: Who says what a model is asked: the `policy`, as an argument; or the `task`, whose prompt it is given.

    Raises:
        RecipeError: There is no model, or none of a name.
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
            raise RecipeError("models: the recipe has none; name some under `models:`")
        self.models = [model_named(models, name) for name in include or models]
        self.question = question
        self.replayable = all(model.replayable for model in self.models)
        self._prices = {f"ask_{model.name}": model.price for model in self.models}
        self._episode: Episode | None = None
        self._asked = 0

    def open(self, episode: Episode) -> None:
        """An episode begins."""
        self._episode, self._asked = episode, 0

    def tools(self) -> list[Tool]:
        """One for each."""
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
        """As of `Charges`: nothing is refused."""
        return "", self._prices.get(name, 0.0)

    async def _answer(self, model: FrozenModel, arguments: dict[str, Any]) -> str:
        assert self._episode is not None
        self._asked += 1
        asked = str(arguments.get("question", self._episode.task.prompt))
        seed = derive_seed(self._episode.seed, model.name, self._asked)
        return (await model.answer([user(asked)], seed=seed)).text
