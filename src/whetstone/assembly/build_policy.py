"""Policy of a recipe: loaded or built, with adapters, precision and tool-call format.

Note:
    If a model does not fit into memory, the operating system ends the process without a message. Its memory is
    therefore estimated before it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from whetstone.assembly.memory_estimate import check_fits
from whetstone.assembly.placement import policy_device, without_effect
from whetstone.assembly.tokenizer_corpus import list_expert_texts
from whetstone.capabilities import implements_protocol
from whetstone.chat import FORMATS, Chat, ToolCallFormat, detect_tool_call_format
from whetstone.chat.detect_format import load_chat_settings
from whetstone.chat.rendering import Variable, template_renderer
from whetstone.environments import Environment
from whetstone.environments.protocol import HasText, find_known_tools
from whetstone.errors import PolicyError, RecipeError
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
    resolve_model_folder,
)
from whetstone.policies.check_tokenizer import tokenizer_mismatch
from whetstone.recipe import PolicySettings, Resolved
from whetstone.tasks import Expert, Generated, Source

_TOKENIZER_EPISODES = 300
"""Expert episodes for the tokenizer's training, in addition to tasks, if the environment has other texts."""
_TOKENIZER_TASKS = 2000
"""Number of training tasks for the tokenizer of a tiny model."""

_SMALL, _HARDLY = 10_000_000, 1e-4
"""Number of parameters and learning rate below which training has almost no effect; defaults suit pretrained models."""


def build_policy(
    resolved: Resolved,
    materials: Callable[[], tuple[Source, Callable[[], Environment]]],
    override: Policy | None,
    *,
    say: Callable[[str], None],
) -> tuple[Policy, ToolCallFormat]:
    """Return the policy of a recipe and its tool-call format.

    Args:
        resolved: Recipe.
        materials: Function that returns the task source and the environment, for the tokenizer of a tiny policy.
        override: Policy that is used instead of the one of the recipe, such as one from a checkpoint.
        say: Callback for lines about choices and slow steps.

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
    for key in without_effect(resolved, device):
        say(f"{key} has no effect: it is computed on the CPU")
    for kind, stage in recipe.own_stages.items() if recipe.policy.path is not None else ():
        if kind != "sampling" and policy.parameters < _SMALL and 0 < stage.learning_rate < _HARDLY:
            line = f"{kind}.learning_rate: {stage.learning_rate:g} suits pretrained models of millions of parameters"
            say(f"{line}; this one has {policy.parameters:,} and hardly changes with it")
    return policy, format


def build_chat(resolved: Resolved, policy: Policy, format: ToolCallFormat) -> Chat:
    """Build the `Chat` of a policy, with the recipe's template variables and tool-call format.

    Raises:
        RecipeError: If the template never reads one of the variables.
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
    """Describe device and precision in one line."""
    device = f"computed on {describe_device(policy.device)}"
    if policy.dtype == torch.float32:
        return f"{device} (policy.device: {settings.device})"
    stored, named = "adapters" if settings.lora is not None else "weights", str(policy.dtype).removeprefix("torch.")
    return (
        f"{device} in {named}, {stored} in float32 (policy.device: {settings.device}, policy.dtype: {settings.dtype})"
    )


def _format(resolved: Resolved, policy: Policy | None, say: Callable[[str], None]) -> ToolCallFormat:
    """Return the recipe's tool-call format, or the one that fits a pretrained policy's template."""
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
    """Return the tool-call format and template variables that the folder of a pretrained policy stores."""
    settings = resolved.recipe.policy
    assert settings.path is not None
    return load_chat_settings(Path(settings.path).expanduser())


def _pretrained(resolved: Resolved) -> Policy:
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
    """Build a randomly initialized policy, with a tokenizer for the recipe's tasks."""
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
        texts += list_expert_texts(source, environment, format, _TOKENIZER_EPISODES, say=say)
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
    """Return the first training texts of a tokenizer."""
    return [source.task(index).text for index in range(_TOKENIZER_TASKS)]


def _with_adapters(resolved: Resolved, policy: Policy) -> Policy:
    """Add adapters if the recipe has them; those of the loaded policy are kept."""
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
            add_adapters(policy.model, seed=resolved.recipe.seed, **lora.model_dump())
        except PolicyError as error:
            raise resolved.error("policy.lora", str(error)) from None
    return policy
