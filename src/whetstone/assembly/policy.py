"""How does a recipe's policy come about? Loaded or built, with adapters, in numbers that suit it, and a format.

Easy to get wrong: a model that does not fit into memory is found out by the system, which ends the process without a
word. So what it takes is counted before it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from whetstone.assembly.memory import check_fits
from whetstone.assembly.placement import device_of, without_effect
from whetstone.assembly.tokenizer_corpus import conversations
from whetstone.chat import FORMATS, Chat, ToolCallFormat, fitting_format
from whetstone.chat.fitting import load_chat_settings
from whetstone.chat.rendering import Variable, rendered
from whetstone.contracts import fulfils
from whetstone.environments import Environment
from whetstone.environments.protocol import Speaks, tools_shown
from whetstone.errors import PolicyError, RecipeError
from whetstone.plugins import find_part
from whetstone.policies import (
    CPU,
    Policy,
    adapter_shape,
    add_adapters,
    build_tiny,
    cast_policy,
    describe_fast_dtype,
    described,
    fast_dtype,
    found_model,
    has_adapters,
    load_policy,
    placed,
)
from whetstone.policies.belonging import strangeness
from whetstone.recipe import PolicySettings, Resolved
from whetstone.tasks import Expert, Generated, Source

_TOKENIZER_EPISODES = 300
"""Episodes of the expert whose texts it is trained on besides, where the environment says more than its tasks."""
_TOKENIZER_TASKS = 2000
"""Training tasks whose texts a tiny model's tokenizer is trained on."""

_SMALL, _HARDLY = 10_000_000, 1e-4
"""Policies of fewer parameters learn next to nothing at rates below; a folder's defaults are a pretrained model's."""


def policy_of(
    resolved: Resolved,
    materials: Callable[[], tuple[Source, Callable[[], Environment]]],
    given: Policy | None,
    *,
    say: Callable[[str], None],
) -> tuple[Policy, ToolCallFormat]:
    """Return the policy of a recipe and its tool-call format.

    Args:
        materials: Function that returns the task source and the environment, for the tokenizer of a tiny policy.
        given: Policy that is used instead of the one of the recipe, such as one from a checkpoint.
        say: Callback for lines about what was chosen, and what takes a while.

    Raises:
        WhetstoneError: The policy cannot be loaded, or lacks what the recipe requires.
    """
    recipe, policy, device = resolved.recipe, given, device_of(resolved)
    if policy is None and recipe.policy.path is not None:
        policy = _pretrained(resolved)
        if strange := strangeness(policy.model, policy.tokenizer):
            say(f"policy.path: the tokenizer may be another model's: {strange}")
        policy = _adapted(resolved, policy)
    format = _format(resolved, policy, say)
    if policy is None:
        policy = _adapted(resolved, _tiny(resolved, *materials(), format, say))
    policy = cast_policy(placed(policy, device), recipe.policy.dtype)
    if recipe.policy.device != "auto" or policy.device != CPU or policy.dtype != torch.float32:
        say(_computed(recipe.policy, policy))
    if policy.dtype == torch.bfloat16 and fast_dtype(policy.device) == torch.float32:
        say(f"policy.dtype: bfloat16 is slow here; faster: {describe_fast_dtype(policy.device)}")
    for key in without_effect(resolved, device):
        say(f"{key} has no effect: it is computed on the CPU")
    for kind, stage in recipe.own_stages.items() if recipe.policy.path is not None else ():
        if kind != "sampling" and policy.parameters < _SMALL and 0 < stage.learning_rate < _HARDLY:
            said = f"{kind}.learning_rate: {stage.learning_rate:g} suits pretrained models of millions of parameters"
            say(f"{said}; this one has {policy.parameters:,}, and hardly moves by it")
    return policy, format


def chat_of(resolved: Resolved, policy: Policy, format: ToolCallFormat) -> Chat:
    """A policy's template, with the recipe's variables, and its tool-call format.

    Raises:
        RecipeError: The template never reads one of the variables.
    """
    variables = resolved.recipe.chat.variables
    if not variables and resolved.recipe.policy.path is not None:
        variables = _stored_chat(resolved)[1]
    if variables:
        try:
            rendered(policy.tokenizer, variables)
        except PolicyError as error:
            raise resolved.error("chat.variables", str(error)) from None
    return Chat(policy.tokenizer, format, variables)


def _computed(settings: PolicySettings, policy: Policy) -> str:
    """On what, and in which numbers."""
    said = f"computed on {described(policy.device)}"
    if policy.dtype == torch.float32:
        return f"{said} (policy.device: {settings.device})"
    held, named = "adapters" if settings.lora is not None else "weights", str(policy.dtype).removeprefix("torch.")
    return f"{said} in {named}, {held} in float32 (policy.device: {settings.device}, policy.dtype: {settings.dtype})"


def _format(resolved: Resolved, policy: Policy | None, say: Callable[[str], None]) -> ToolCallFormat:
    """The recipe's tool-call format, or the one that fits a pretrained policy's template."""
    settings = resolved.recipe
    name = settings.chat.format
    if name == "auto":
        stored = _stored_chat(resolved)[0] if settings.policy.path is not None else "auto"
        fitting = fitting_format(policy.tokenizer, settings.chat.variables) if policy is not None else "hermes"
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
    folder = found_model(settings.path, revision=settings.revision, trust_remote_code=trusted)
    return load_policy(folder, as_stored=True, trust_remote_code=trusted)


def _tiny(
    resolved: Resolved,
    source: Source,
    environment: Callable[[], Environment],
    format: ToolCallFormat,
    say: Callable[[str], None],
) -> Policy:
    """A policy built from nothing, with a tokenizer for the recipe's tasks."""
    settings = resolved.recipe.policy
    assert settings.tiny is not None  # the recipe has one or the other
    texts = _prompts(source)
    made = environment()
    specs = tools_shown(made)
    # often enough that the names of tools become tokens
    texts += [format.describe(specs)] * (_TOKENIZER_TASKS // 10) if specs else []
    # those that come with a generator are there to be played; others may stand on a service that counts its calls
    if (not fulfils(made, Speaks) or made.speaks) and isinstance(source, Generated) and isinstance(source, Expert):
        texts += conversations(source, environment, format, _TOKENIZER_EPISODES, say=say)
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
    """What a tokenizer is trained on first."""
    return [source.task(index).text for index in range(_TOKENIZER_TASKS)]


def _adapted(resolved: Resolved, policy: Policy) -> Policy:
    """The policy, with adapters where the recipe has them; those it brings along go on."""
    lora = resolved.recipe.policy.lora
    if lora is not None and has_adapters(policy.model):
        for name, brought in adapter_shape(policy.model).items():
            if getattr(lora, name) != brought:
                said = f"the adapters of {resolved.recipe.policy.path} have {brought}; write that here"
                raise resolved.error(f"policy.lora.{name}", f"{said}, or merge them first (whetstone export --merged)")
    elif lora is not None:
        try:
            add_adapters(policy.model, seed=resolved.recipe.seed, **lora.model_dump())
        except PolicyError as error:
            raise resolved.error("policy.lora", str(error)) from None
    return policy
