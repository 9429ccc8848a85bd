"""Who are the models of a recipe that are asked and never trained? A run or folder, an address, or a function.

Easy to get wrong: a folder's weights are loaded when it is first asked, so that looking at a recipe loads none; that it
is there is seen at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from whetstone.assembly.members import Member, frozen_engine
from whetstone.assembly.placement import device_of
from whetstone.chat import FORMATS, Chat, ChatEndpoint, Message, ToolSpec, fitting_format
from whetstone.chat.endpoint import key_in
from whetstone.errors import InfrastructureError, PolicyError, RecipeError
from whetstone.inference import GenerateRequest, Sampling
from whetstone.plugins import find_part
from whetstone.policies import Policy, found_model, load_frozen
from whetstone.recipe import ModelSettings, Resolved
from whetstone.record import kept_checkpoint, run_recipe
from whetstone.tools.models import FrozenModel, Said

_Speaks = Callable[[Sequence[Message], Sequence[ToolSpec], int], Awaitable[Said] | Said]


def frozen_models(resolved: Resolved) -> Mapping[str, FrozenModel]:
    """By name, the models of a recipe's `models`.

    Raises:
        RecipeError: A folder, function or key is not there.
    """
    return {name: _model(resolved, name, settings) for name, settings in resolved.recipe.models.items()}


def _model(resolved: Resolved, name: str, settings: ModelSettings) -> FrozenModel:
    said: _Speaks
    try:
        if settings.function is not None:
            said = find_part("model", settings.function, {})
        elif settings.url is not None:
            said = _Endpoint(settings)
        else:
            said = _Local(resolved, name, settings)
    except (RecipeError, PolicyError) as error:
        raise resolved.error(f"models.{name}", str(error)) from None
    replayable = settings.url is None
    return FrozenModel(name, said, settings.price, settings.seconds, settings.skill, replayable)


class _Endpoint:
    """A model behind an address."""

    def __init__(self, settings: ModelSettings) -> None:
        assert settings.url is not None
        self.settings, self.key = settings, key_in(settings.api_key_env)
        self._asked: ChatEndpoint | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> Message:
        options: dict[str, Any] = {
            "temperature": self.settings.temperature,
            "max_tokens": self.settings.max_new_tokens,
            "seed": seed % 2**31,
        }
        if tools:
            options["tools"] = [tool.to_openai() for tool in tools]
        completion = await self._here().complete([message.to_openai() for message in conversation], **options)
        try:
            return Message.from_openai({**completion.message, "role": "assistant"})
        except ValueError as error:
            raise InfrastructureError(f"the model at {self.settings.url} says no message: {error}") from None

    def _here(self) -> ChatEndpoint:
        """A connection belongs to the loop it was made in."""
        loop = asyncio.get_running_loop()
        if self._asked is None or self._loop is not loop:
            assert self.settings.url is not None
            self._asked, self._loop = ChatEndpoint(self.settings.url, self.settings.model, key=self.key), loop
        return self._asked


class _Local:
    """A model in a folder, or the last one of a run."""

    def __init__(self, resolved: Resolved, name: str, settings: ModelSettings) -> None:
        assert settings.path is not None
        self.settings, self.folder = settings, Path(settings.path)
        format_name, variables = "auto", {}
        if (self.folder / "recipe.yaml").is_file():
            chat = run_recipe(self.folder).recipe.chat
            format_name, variables = chat.format, chat.variables
            last = kept_checkpoint(self.folder)
            if last is None:
                raise RecipeError(f"path: {self.folder}: the run has no checkpoint yet")
            self.folder = last
        trusted = resolved.recipe.policy.trust_remote_code
        found_model(self.folder, trust_remote_code=trusted)

        def read_chat(policy: Policy) -> Chat:
            named = fitting_format(policy.tokenizer, variables) if format_name == "auto" else format_name
            return Chat(policy.tokenizer, find_part("tool-call format", named, FORMATS)(), variables)

        self.member = Member(
            name,
            lambda: load_frozen(self.folder, trust_remote_code=trusted, device=device_of(resolved)),
            chat=read_chat,
            engine=partial(frozen_engine, max_sequences=resolved.recipe.rollout.max_in_flight),
        )
        self._episodes = count()

    async def __call__(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> Message:
        policy, chat, engine = self.member.policy, self.member.chat, self.member.engine
        prompt = chat.open(conversation, tools).tokens
        room = policy.context_length - len(prompt)
        if room < 1:
            limit = f"the model at {self.settings.path} reads {policy.context_length} tokens"
            raise InfrastructureError(f"{limit}, and was given {len(prompt)}")
        sampling = Sampling(
            max_new_tokens=min(room, self.settings.max_new_tokens),
            temperature=self.settings.temperature,
            stop_ids=chat.stop_ids,
            stop_strings=chat.format.stops,
            seed=seed,
        )
        episode = f"asked-{next(self._episodes)}"
        try:
            generation = await engine.generate(GenerateRequest(prompt, sampling, episode))
        finally:
            engine.forget(episode)
        return chat.read(generation.tokens, tools, turn=0)
