"""Frozen models of a recipe (`models`): from a run or folder, a URL, or a function.

Note:
    The weights of a folder are loaded at the first request, so that inspecting a recipe loads none. A missing folder is
    reported immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from whetstone.assembly.placement import policy_device
from whetstone.chat import FORMATS, Chat, ChatEndpoint, Message, ToolSpec, detect_tool_call_format
from whetstone.chat.openai_client import read_api_key
from whetstone.errors import InfrastructureError, PolicyError, RecipeError
from whetstone.inference import GenerateRequest, Sampling, frozen_member
from whetstone.plugins import find_part
from whetstone.policies import Policy, resolve_model_folder
from whetstone.recipe import ModelSettings, Resolved
from whetstone.record import kept_checkpoint, run_recipe
from whetstone.tools.model_tools import FrozenModel, ModelResponse

_Speaks = Callable[[Sequence[Message], Sequence[ToolSpec], int], Awaitable[ModelResponse] | ModelResponse]


def frozen_models(resolved: Resolved) -> Mapping[str, FrozenModel]:
    """Build the frozen models of a recipe's `models`, by name.

    Raises:
        RecipeError: If a folder, function or key does not exist.
    """
    return {name: _model(resolved, name, settings) for name, settings in resolved.recipe.models.items()}


def _model(resolved: Resolved, name: str, settings: ModelSettings) -> FrozenModel:
    """Build one frozen model from its settings."""
    respond: _Speaks
    try:
        if settings.function is not None:
            respond = find_part("model", settings.function, {})
        elif settings.url is not None:
            respond = _Endpoint(settings)
        else:
            respond = _Local(resolved, name, settings)
    except (RecipeError, PolicyError) as error:
        raise resolved.error(f"models.{name}", str(error)) from None
    replayable = settings.url is None
    return FrozenModel(name, respond, settings.price, settings.seconds, settings.skill, replayable)


class _Endpoint:
    """Frozen model that an OpenAI-compatible server at `url` answers for."""

    def __init__(self, settings: ModelSettings) -> None:
        assert settings.url is not None
        self.settings, self.key = settings, read_api_key(settings.api_key_env)
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
        completion = await self._client_for_loop().complete(
            [message.to_openai() for message in conversation], **options
        )
        try:
            return Message.from_openai({**completion.message, "role": "assistant"})
        except ValueError as error:
            raise InfrastructureError(f"the model at {self.settings.url} returned no message: {error}") from None

    def _client_for_loop(self) -> ChatEndpoint:
        """Return the HTTP client of the running event loop, because connections belong to one loop."""
        loop = asyncio.get_running_loop()
        if self._asked is None or self._loop is not loop:
            assert self.settings.url is not None
            self._asked, self._loop = ChatEndpoint(self.settings.url, self.settings.model, key=self.key), loop
        return self._asked


class _Local:
    """Frozen model in this process, from a folder or the last checkpoint of a run."""

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
        resolve_model_folder(self.folder, trust_remote_code=trusted)

        def read_chat(policy: Policy) -> Chat:
            named = detect_tool_call_format(policy.tokenizer, variables) if format_name == "auto" else format_name
            return Chat(policy.tokenizer, find_part("tool-call format", named, FORMATS)(), variables)

        self.member = frozen_member(
            name,
            self.folder,
            trust_remote_code=trusted,
            device=policy_device(resolved),
            chat=read_chat,
            max_sequences=resolved.recipe.rollout.max_episodes,
        )
        self._episodes = count()

    async def __call__(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> Message:
        policy, chat, engine = self.member.policy, self.member.chat, self.member.engine
        prompt = chat.open(conversation, tools).tokens
        room = policy.context_length - len(prompt)
        if room < 1:
            limit = f"the model at {self.settings.path} reads {policy.context_length} tokens"
            raise InfrastructureError(f"{limit}, but the prompt has {len(prompt)}")
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
