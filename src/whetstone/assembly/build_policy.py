"""Construction of a recipe's policy, pretrained or randomly initialized.

Note:
    If a model does not fit into memory, the operating system ends the process without a message. Its memory is
    therefore estimated before it is loaded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from whetstone.assembly.memory_estimate import check_fits
from whetstone.assembly.placement import list_ineffective_keys, policy_device
from whetstone.capabilities import implements_protocol
from whetstone.chat import FORMATS, Chat, ToolCallFormat, detect_tool_call_format
from whetstone.chat.detect_format import load_chat_settings
from whetstone.chat.rendering import Variable, template_renderer
from whetstone.environments import Environment
from whetstone.environments.protocol import HasText, find_known_tools
from whetstone.errors import PolicyError, RecipeError, TaskError, WhetstoneError
from whetstone.plugins import find_part
from whetstone.policies import (
    CPU,
    Policy,
    adapter_shape,
    add_adapters,
    build_tiny,
    cast_policy,
    describe_device,
    describe_fast_dtype,
    fast_dtype,
    has_adapters,
    load_policy,
    move_policy,
    quantize_linears,
    resolve_model_folder,
)
from whetstone.policies.check_tokenizer import tokenizer_mismatch
from whetstone.recipe import PolicySettings, Resolved
from whetstone.tasks import Expert, Generated, Source
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Task
from whetstone.user_code import describe_exception

_TOKENIZER_EPISODES = 300
"""Number of expert episodes whose texts train a tokenizer, in addition to the prompts of tasks."""
_TOKENIZER_TASKS = 2000
"""Number of training tasks whose prompts train the tokenizer of a tiny model."""

_SMALL, _HARDLY = 10_000_000, 1e-4
"""Number of parameters and learning rate below which training has almost no effect; defaults suit pretrained models."""


def build_policy(
    resolved: Resolved,
    materials: Callable[[], tuple[Source, Callable[[], Environment]]],
    override: Policy | None,
    *,
    say: Callable[[str], None],
) -> tuple[Policy, ToolCallFormat]:
    """Load or build the policy of a recipe, and select its tool-call format.

    Args:
        resolved: Recipe.
        materials: Function that returns (task source, environment factory), called only to train the tokenizer of a
            tiny policy.
        override: Policy to use instead of the policy of the recipe, for example one loaded from a checkpoint.
        say: Callback that receives log lines about choices and slow steps.

    Returns:
        (policy on its device in its precision, tool-call format).

    Raises:
        WhetstoneError: If the policy cannot be loaded, or does not meet a requirement of the recipe.
    """
    recipe, policy, device = resolved.recipe, override, policy_device(resolved)
    if policy is None and recipe.policy.path is not None:
        policy = _pretrained(resolved)
        if strange := tokenizer_mismatch(policy.model, policy.tokenizer):
            say(f"policy.path: the tokenizer may belong to another model: {strange}")
        policy = _with_adapters(resolved, policy)
    format = _format(resolved, policy, say)
    if policy is None:
        policy = _with_adapters(resolved, _tiny(resolved, *materials(), format, say))
    policy = cast_policy(move_policy(policy, device), recipe.policy.dtype)
    if recipe.policy.device != "auto" or policy.device != CPU or policy.dtype != torch.float32:
        say(_describe_computation(recipe.policy, policy))
    if policy.dtype == torch.bfloat16 and fast_dtype(policy.device) == torch.float32:
        say(f"policy.dtype: bfloat16 is slow here; faster: {describe_fast_dtype(policy.device)}")
    for key in list_ineffective_keys(resolved, device):
        say(f"{key} has no effect: it is computed on the CPU")
    longest = recipe.rollout.max_new_tokens
    if longest >= policy.context_length:  # a context has at least one token before the answer
        say(
            f"rollout.max_new_tokens: {longest:,} never fits into the context of {policy.context_length:,} tokens, "
            "which ends each answer earlier; set a smaller value, or use a policy with a longer context"
        )
    return policy, format


def describe_low_rates(policy: Policy, rates: Mapping[str, float]) -> list[str]:
    """Return a warning for each learning rate that is too low for a small pretrained policy.

    Args:
        policy: Policy that is loaded from a folder.
        rates: Learning rate by the section of the recipe that trains the policy with it, such as `reinforcement`.
    """
    if policy.parameters >= _SMALL:
        return []
    return [
        f"{section}.learning_rate: {rate:g} suits pretrained models of millions of parameters; this one has "
        f"{policy.parameters:,} and hardly changes with it; set a higher one, such as {section}.learning_rate=1e-3"
        for section, rate in rates.items()
        if 0 < rate < _HARDLY
    ]


def build_chat(resolved: Resolved, policy: Policy, format: ToolCallFormat) -> Chat:
    """Build the converter between messages and tokens for a policy.

    Args:
        resolved: Recipe, whose `chat.variables` are passed to the chat template. A pretrained policy without them uses
            the variables that are stored in its folder.
        policy: Policy with the tokenizer and its chat template.
        format: Tool-call format.

    Raises:
        RecipeError: If the chat template never reads one of the variables.
    """
    variables = resolved.recipe.chat.variables
    if not variables and resolved.recipe.policy.path is not None:
        variables = _stored_chat(resolved)[1]
    if variables:
        try:
            template_renderer(policy.tokenizer, variables)
        except PolicyError as error:
            raise resolved.error("chat.variables", str(error)) from None
    return Chat(policy.tokenizer, format, variables)


def _describe_computation(settings: PolicySettings, policy: Policy) -> str:
    """Format device and precision of the policy as one log line."""
    device = f"computed on {describe_device(policy.device)}"
    if policy.dtype == torch.float32:
        return f"{device} (policy.device: {settings.device})"
    stored, named = "adapters" if settings.lora is not None else "weights", str(policy.dtype).removeprefix("torch.")
    return (
        f"{device} in {named}, {stored} in float32 (policy.device: {settings.device}, policy.dtype: {settings.dtype})"
    )


def _format(resolved: Resolved, policy: Policy | None, say: Callable[[str], None]) -> ToolCallFormat:
    """Return the tool-call format of the recipe.

    For `auto`, it is the format stored in the policy's folder, or the one of its chat template.
    """
    settings = resolved.recipe
    name = settings.chat.format
    if name == "auto":
        stored = _stored_chat(resolved)[0] if settings.policy.path is not None else "auto"
        fitting = detect_tool_call_format(policy.tokenizer, settings.chat.variables) if policy is not None else "hermes"
        name = fitting if stored == "auto" else stored
        if settings.policy.path is not None:
            say(f"tools are called as {name} (chat.format: auto)")
    try:
        format: ToolCallFormat = find_part("tool-call format", name, FORMATS)()
    except RecipeError as error:
        raise resolved.error("chat.format", str(error)) from None
    return format


def _stored_chat(resolved: Resolved) -> tuple[str, dict[str, Variable]]:
    """Return (tool-call format, template variables) from a pretrained policy's folder."""
    settings = resolved.recipe.policy
    assert settings.path is not None
    return load_chat_settings(Path(settings.path).expanduser())


def _pretrained(resolved: Resolved) -> Policy:
    """Load the pretrained policy that `policy.path` names, after its memory estimate is checked."""
    settings = resolved.recipe.policy
    assert settings.path is not None
    trusted = settings.trust_remote_code
    check_fits(resolved, trains=False)
    folder = resolve_model_folder(settings.path, revision=settings.revision, trust_remote_code=trusted)
    return load_policy(folder, as_stored=True, trust_remote_code=trusted)


def _tiny(
    resolved: Resolved,
    source: Source,
    environment: Callable[[], Environment],
    format: ToolCallFormat,
    say: Callable[[str], None],
) -> Policy:
    """Build a randomly initialized policy with a tokenizer that is trained on the recipe's tasks."""
    settings = resolved.recipe.policy
    assert settings.tiny is not None  # the recipe has one or the other
    texts = _prompts(source)
    example = environment()
    specs = find_known_tools(example)
    # repeated, so that the names of tools become tokens
    texts += [format.describe(specs)] * (_TOKENIZER_TASKS // 10) if specs else []
    # a generator's environment can be played freely; others may depend on a service that bills its calls
    if (
        (not implements_protocol(example, HasText) or example.speaks)
        and isinstance(source, Generated)
        and isinstance(source, Expert)
    ):
        texts += list_expert_texts(source, environment, format, _TOKENIZER_EPISODES, log=say)
    return build_tiny(
        texts,
        markers=format.markers,
        vocabulary=settings.tiny.vocab_size,
        hidden=settings.tiny.hidden_size,
        layers=settings.tiny.num_layers,
        heads=settings.tiny.num_heads,
        intermediate=settings.tiny.intermediate_size,
        context_length=settings.tiny.context_length,
        seed=resolved.recipe.seed,
    )


def _prompts(source: Source) -> list[str]:
    """Return the prompts of the first training tasks, as text for the training of a tokenizer."""
    return [source.task(index).text for index in range(_TOKENIZER_TASKS)]


def _with_adapters(resolved: Resolved, policy: Policy) -> Policy:
    """Add the LoRA adapters of `policy.lora`; adapters of the loaded policy are kept.

    Raises:
        RecipeError: If the loaded adapters have another rank, alpha or other setting than `policy.lora`.
    """
    lora = resolved.recipe.policy.lora
    if lora is not None and has_adapters(policy.model):
        for name, brought in adapter_shape(policy.model).items():
            if getattr(lora, name) != brought:
                problem = f"the adapters of {resolved.recipe.policy.path} have {brought}; write that here"
                raise resolved.error(
                    f"policy.lora.{name}", f"{problem}, or merge them first (whetstone export --merged)"
                )
    elif lora is not None:
        try:
            if lora.quantization is not None:
                quantize_linears(policy.model)
            add_adapters(policy.model, seed=resolved.recipe.seed, **lora.model_dump(exclude={"quantization"}))
        except PolicyError as error:
            raise resolved.error("policy.lora", str(error)) from None
    return policy


_MOST_TURNS = 60
_LONG_SECONDS = 5.0


def list_expert_texts(
    source: Any,
    environment: Callable[[], Environment],
    format: Any,
    count: int,
    *,
    log: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Play the expert's episodes of the first tasks, and return all of their texts.

    The texts train the tokenizer of a tiny policy. Actions are written in the tool-call format.

    Args:
        source: Task source with an expert.
        environment: Function that creates the environment of an episode.
        format: Tool-call format.
        count: Number of tasks.
        log: Callback that receives a line if the episodes take longer than five seconds.

    Raises:
        TaskError: If an episode of the expert fails; the message names the task and the reason.
        WhetstoneError: If a dependency of the environment is missing.
    """
    # an event loop may already be running, and a thread cannot run two
    with ThreadPoolExecutor(1, thread_name_prefix="conversations") as pool:
        return pool.submit(asyncio.run, _played(source, environment, format, count, log)).result()


async def _played(
    source: Any, make: Callable[[], Environment], format: Any, count: int, log: Callable[[str], None]
) -> list[str]:
    assert isinstance(source, Expert)
    texts = []
    began = time.perf_counter()
    is_reported = False
    for index in range(count):
        if not is_reported and time.perf_counter() - began > _LONG_SECONDS:
            log(f"the tiny model's tokenizer is trained on {count} episodes of the expert; {index} are finished")
            is_reported = True
        task = source.task(index)  # type: ignore[attr-defined]
        try:
            texts += await _episode(source, task, make(), format, seed=index)
        except WhetstoneError:
            raise
        except (Exception, SystemExit) as error:
            raise TaskError(f"the expert's episode of task {task.id} failed: {describe_exception(error)}") from error
    return texts


async def _episode(source: Expert, task: Task, environment: Environment, format: Any, *, seed: int) -> list[str]:
    texts: list[str] = []
    try:
        first = await call_user_function(environment.reset, task, seed=seed)
        conversation, tools = list(first.messages), first.tools
        for _ in range(_MOST_TURNS):
            action = source.demonstrate(task, conversation, tools)
            texts.append(format.write(action, tools))
            result = await call_user_function(environment.step, action)
            conversation += [action, *result.observation.messages]
            tools = result.observation.tools or tools
            if result.ended is not None:
                break
        texts += [message.text for message in conversation if message.role != "assistant"]
    finally:
        await call_user_function(environment.close)
    return texts
