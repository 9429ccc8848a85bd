"""Rates of engine and learner for the simulator of a plan, by formula or as measured.

    decode step           2 N / (T · B · η_b)  + layers · 20 µs if T > 1
      per sequence        (KV cache of its context) / (T · B · η_b)  +  2 N / (T · F · η_f)
    prefill per token     2 N / (T · F · η_f)
    training per token    (6 N + 6 · layers · width · context) · passes / (L · F · MFU), a third more with activation
                          checkpointing; if G GPUs compute a layer together, also 7 times its states in 2 bytes
                          through the network of each
    update                12 N bytes through the memory of L GPUs, and one second to start and gather
    weight transfer       2 N bytes over min(T, L) adapters of the network, and half a second

N parameters, T GPUs per replica, L GPUs of the learner, B bytes per second of memory, F operations per second. A file
for `--rates` has measured values, each of which replaces one of these.

Note:
    A GPU does not reach its peak. η_b 0.7, η_f 0.5 and MFU 0.4 are usual for servers and trainers with dense models of
    this size; measured rates are better than any of them.

Source: Pope et al. 2022, arXiv:2211.05102, sections 2 and 3 (decoding and reading); Kaplan et al. 2020,
arXiv:2001.08361, section 2.1 (operations per token).
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field, ValidationError

from whetstone.assembly.model_size import ModelSize
from whetstone.errors import RecipeError
from whetstone.recipe import Recipe, ReinforcementSettings
from whetstone.recipe.error_messages import describe_validation_error
from whetstone.recipe.settings_base import Settings
from whetstone.recipe.yaml_text import yaml_document
from whetstone.record import stored_lines
from whetstone.scaling.plan_hardware import Gpu
from whetstone.scaling.simulation_scenario import EngineRates, EpisodeShape, LearnerRates, LognormalSpread

_ADDED_UP = 7
"""Number of all-reduces of a layer's states over GPUs that compute it together: of attention and MLP in the forward
pass; of queries, keys, values and the two products before the activation in the backward pass."""
_ALL_REDUCE = 20e-6
_MOST_SEQUENCES = 256
"""Default maximum batch size of an inference server."""


class EpisodeFacts(Settings):
    """Measured or assumed lengths and latencies of episodes."""

    turns: float | None = Field(None, ge=1)
    """Mean number of turns; null: half of `environment.max_turns`, plus one."""
    prompt_tokens: float = Field(512, ge=1)
    """Mean number of tokens of the prompt."""
    turn_tokens: float | None = Field(None, ge=1)
    """Mean number of sampled tokens per turn; null: half of `rollout.max_new_tokens`."""
    observation_tokens: float = Field(256, ge=0)
    """Mean number of tokens of an observation."""
    tool_seconds: float = Field(1.0, ge=0)
    """Mean seconds of the tool calls of a turn."""
    reward_seconds: float = Field(0.0, ge=0)
    """Mean seconds of the reward of an episode."""
    length_sigma: float = Field(0.6, ge=0)
    """Log-normal σ of the number of turns and of the tokens per turn."""
    tool_sigma: float = Field(1.0, ge=0)
    """Log-normal σ of the tool seconds."""


class EngineFacts(Settings):
    """Measured rates of one replica; null: computed by the formula."""

    step_seconds: float | None = Field(None, gt=0)
    """Seconds of a decode step, without the part per sequence."""
    step_seconds_per_sequence: float | None = Field(None, ge=0)
    """Additional seconds of a decode step per sequence in the batch."""
    prefill_seconds_per_token: float | None = Field(None, ge=0)
    """Seconds of prefill per prompt token."""
    max_sequences: int | None = Field(None, ge=1)
    """Maximum number of sequences in the batch."""
    bandwidth_efficiency: float = Field(0.7, gt=0, le=1)
    """Fraction η_b of the memory bandwidth that decoding reaches."""
    flops_efficiency: float = Field(0.5, gt=0, le=1)
    """Fraction η_f of the peak operations that prefill reaches."""


class LearnerFacts(Settings):
    """Measured rates of the learner."""

    mfu: float = Field(0.4, gt=0, le=1)
    """Model FLOPs utilization: operations of the model divided by the peak of its GPUs."""
    seconds: float = Field(1.0, ge=0)
    """Fixed seconds per update."""
    between_seconds: float = Field(0.0, ge=0)
    """Seconds per step for work other than training and transfer."""


class NetworkFacts(Settings):
    """Network between learner and samplers."""

    gigabytes_per_second: float | None = Field(None, gt=0)
    """Bandwidth of one network adapter in GB per second; null: that of the GPU type."""


class FailureFacts(Settings):
    """Failure rate and restart time of GPUs."""

    gpu_per_hour: float = Field(0.0, ge=0)
    """Failures of one GPU per hour; 16,384 GPUs failed 419 times in 54 days in the training of Llama 3: 2e-5."""
    restart_seconds: float = Field(300.0, ge=0)
    """Seconds until a failed component works again."""


class Rates(Settings):
    """Contents of a rates file for `whetstone plan --rates`."""

    episode: EpisodeFacts = EpisodeFacts()
    engine: EngineFacts = EngineFacts()
    learner: LearnerFacts = LearnerFacts()
    network: NetworkFacts = NetworkFacts()
    failures: FailureFacts = FailureFacts()


def read_rates(path: Path) -> Rates:
    """Read rates from a YAML or JSON file, or the lengths of episodes from a run directory.

    Raises:
        RecipeError: The file cannot be read, a key is unknown, or a value is out of range.
    """
    if path.is_dir():
        return Rates(episode=_measured(path))
    try:
        document = yaml_document(path.read_text(encoding="utf-8"), str(path), plain=True)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise RecipeError(f"{path}:1  rates are a mapping of keys to values: {', '.join(Rates.model_fields)}")
    try:
        return Rates.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"{path}  {describe_validation_error(error, Rates)}") from None


def _measured(run_dir: Path) -> EpisodeFacts:
    """Return the mean lengths and latencies of the episodes that a run recorded."""
    episodes = [line["turns"] for line in stored_lines(run_dir) if line.get("turns")]
    if not episodes:
        raise RecipeError(f"{run_dir}: no recorded episode to read rates from; choose a run that has played episodes")
    turns = [turn for episode in episodes for turn in episode]
    later = [turn for episode in episodes for turn in episode[1:]]
    return EpisodeFacts(
        turns=len(turns) / len(episodes),
        prompt_tokens=max(1.0, fmean(_count(episode[0], "context") for episode in episodes)),
        turn_tokens=max(1.0, fmean(_count(turn, "action") for turn in turns)),
        observation_tokens=fmean(_count(turn, "context") for turn in later) if later else 0.0,
        tool_seconds=fmean(float(turn["seconds"][2]) for turn in turns),
    )


def _count(turn: dict[str, Any], key: str) -> int:
    return len(turn[key]["ids"])


def episode_shape(facts: EpisodeFacts, recipe: Recipe) -> EpisodeShape:
    """Return the distribution of episodes for the simulator.

    Values that were not measured are derived from limits of the recipe.
    """
    turns = facts.turns if facts.turns is not None else 1 + recipe.environment.max_turns / 2
    turn_tokens = facts.turn_tokens if facts.turn_tokens is not None else max(1, recipe.rollout.max_new_tokens / 2)
    return EpisodeShape(
        turns=LognormalSpread(turns, facts.length_sigma if turns > 1 else 0.0),
        prompt_tokens=LognormalSpread(facts.prompt_tokens),
        turn_tokens=LognormalSpread(turn_tokens, facts.length_sigma),
        observation_tokens=LognormalSpread(facts.observation_tokens),
        tool_seconds=LognormalSpread(facts.tool_seconds, facts.tool_sigma),
        reward_seconds=LognormalSpread(facts.reward_seconds),
    )


def mean_context(shape: EpisodeShape) -> float:
    """Return the mean number of tokens in the context at the end of an episode."""
    each = shape.turn_tokens.expected + shape.observation_tokens.expected
    return shape.prompt_tokens.expected + shape.turns.expected * each


def engine_rates(
    facts: EngineFacts, size: ModelSize, gpu: Gpu, *, tensor_parallel: int, sequences: int, context: float
) -> EngineRates:
    """Compute the rates of one replica by the formulas of this module, or take the measured ones.

    Args:
        facts: Measured rates and efficiencies.
        size: Size of the model.
        gpu: Type of the GPUs.
        tensor_parallel: Number of GPUs of the replica.
        sequences: Number of sequences whose KV cache fits.
        context: Number of tokens in the context of a sequence at its end.
    """
    flops = tensor_parallel * gpu.teraflops * 1e12 * facts.flops_efficiency
    bandwidth = tensor_parallel * gpu.memory_bandwidth * 1e9 * facts.bandwidth_efficiency
    token = 2 * size.parameters / flops
    step = 2 * size.parameters / bandwidth + (size.layers * _ALL_REDUCE if tensor_parallel > 1 else 0.0)
    keys = 4 * size.layers * size.keys * context / 2  # keys and values, two bytes each; half the final length
    return EngineRates(
        step_seconds=facts.step_seconds or step,
        step_seconds_per_sequence=_or(facts.step_seconds_per_sequence, keys / bandwidth + token),
        prefill_seconds_per_token=_or(facts.prefill_seconds_per_token, token),
        max_sequences=min(sequences, facts.max_sequences or _MOST_SEQUENCES),
    )


def learner_rates(
    rates: Rates,
    size: ModelSize,
    gpu: Gpu,
    settings: ReinforcementSettings,
    *,
    learners: int,
    travel: int,
    trained: int,
    tensor_parallel: int,
    context: float,
    together: int = 1,
    has_reference: bool = False,
) -> LearnerRates:
    """Compute the rates of the learner by the formulas of this module.

    Args:
        rates: Measured rates and efficiencies.
        size: Size of the model.
        gpu: Type of the GPUs.
        settings: Settings of the reinforcement learning stage.
        learners: Number of GPUs of the learner.
        travel: Number of parameters that are sent to replicas.
        trained: Number of parameters that have a gradient.
        tensor_parallel: Number of GPUs of a replica.
        context: Number of tokens in the context of a sequence at its end.
        together: Number of GPUs that compute each layer together.
        has_reference: Whether a reference model computes log-probs of each segment.
    """
    passes = settings.epochs + (1 / 3 if has_reference else 0)
    each = (6 * size.parameters + 6 * size.layers * size.hidden * context) * passes
    each *= 4 / 3 if settings.activation_checkpointing else 1
    fixed = rates.learner.seconds + 12 * trained / (learners * gpu.memory_bandwidth * 1e9)
    network = rates.network.gigabytes_per_second or gpu.network
    adapters = min(tensor_parallel, learners)
    sent = (
        _ADDED_UP * size.layers * size.hidden * 2 * 2 * (together - 1) / together
    )  # bytes per token and GPU, in a ring
    return LearnerRates(
        seconds=fixed,
        seconds_per_token=each / (learners * gpu.teraflops * 1e12 * rates.learner.mfu)
        + sent * passes * together / (learners * network * 1e9 * 0.8),
        between_seconds=rates.learner.between_seconds,
        transfer_seconds=0.5 + 2 * travel / (network * 1e9 * 0.8 * adapters),
    )


def _or(measured: float | None, computed: float) -> float:
    return computed if measured is None else measured
