"""How fast is each part of a cluster, by formula or as measured? What a plan hands to the simulator.

    a decode step       2 N / (T · B · η_b)  + layers · 20 µs where T > 1
      each sequence     (keys of its context) / (T · B · η_b)  +  2 N / (T · F · η_f)
    a token read        2 N / (T · F · η_f)
    a token learned     (6 N + 6 · layers · width · context) · passes / (L · F · MFU), a third more where activations
                        are computed again; where G GPUs compute a layer together, 7 times its states in 2 bytes
                        through the network of each as well
    an update           12 N bytes through the memory of L GPUs, and a second of starting and gathering
    weights on the way  2 N bytes over min(T, L) adapters of the network, and half a second

N parameters, T GPUs a replica, L GPUs of the learner, B bytes a second of memory, F operations a second. `--rates` says
what was measured instead: the file's numbers stand in the place of these, one by one.

Easy to get wrong: what a GPU can do is not what it does. η_b 0.7, η_f 0.5 and MFU 0.4 are what servers and trainers
reach on dense models of this size; measured rates are better than any of them.

Source: Pope et al. 2022, arXiv:2211.05102, sections 2 and 3 (decoding and reading); Kaplan et al. 2020,
arXiv:2001.08361, section 2.1 (operations a token).
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field, ValidationError

from whetstone.assembly.model_size import ModelSize
from whetstone.errors import RecipeError
from whetstone.recipe import Recipe, ReinforcementSettings
from whetstone.recipe.parts import Settings
from whetstone.recipe.problems import problem_of
from whetstone.recipe.yaml_text import yaml_document
from whetstone.record import stored_lines
from whetstone.scaling.plan_hardware import Gpu
from whetstone.scaling.simulation_scenario import EngineRates, EpisodeShape, LearnerRates, Spread

_ADDED_UP = 7
"""Sums of a layer's states over GPUs that compute it together: of attention and MLP forward, and backward of what
queries, keys, values and the two products in front of the units take."""
_ALL_REDUCE = 20e-6
_MOST_SEQUENCES = 256
"""Of a server's batch, unless it is told otherwise."""


class EpisodeFacts(Settings):
    """What episodes are like."""

    turns: float | None = Field(None, ge=1)
    """Null: half of `environment.max_turns`, and one."""
    prompt_tokens: float = Field(512, ge=1)
    turn_tokens: float | None = Field(None, ge=1)
    """Null: half of `rollout.max_new_tokens`."""
    observation_tokens: float = Field(256, ge=0)
    tool_seconds: float = Field(1.0, ge=0)
    reward_seconds: float = Field(0.0, ge=0)
    length_sigma: float = Field(0.6, ge=0)
    """Of turns and of tokens in a turn, as a log-normal's."""
    tool_sigma: float = Field(1.0, ge=0)


class EngineFacts(Settings):
    """What one replica was measured to do; null: by the formula."""

    step_seconds: float | None = Field(None, gt=0)
    step_seconds_per_sequence: float | None = Field(None, ge=0)
    prefill_seconds_per_token: float | None = Field(None, ge=0)
    max_sequences: int | None = Field(None, ge=1)
    bandwidth_efficiency: float = Field(0.7, gt=0, le=1)
    flops_efficiency: float = Field(0.5, gt=0, le=1)


class LearnerFacts(Settings):
    """What the learner was measured to do."""

    mfu: float = Field(0.4, gt=0, le=1)
    """Operations of the model over what its GPUs can do."""
    seconds: float = Field(1.0, ge=0)
    """Of an update, whatever it learns from."""
    between_seconds: float = Field(0.0, ge=0)


class NetworkFacts(Settings):
    """What lies between learner and samplers."""

    gigabytes_per_second: float | None = Field(None, gt=0)
    """Of one adapter; null: the GPU's."""


class FailureFacts(Settings):
    """What is lost how often."""

    gpu_per_hour: float = Field(0.0, ge=0)
    """Failures of one GPU an hour; 16,384 of them failed 419 times in 54 days while Llama 3 was trained: 2e-5."""
    restart_seconds: float = Field(300.0, ge=0)


class Rates(Settings):
    """The keys of a file of rates."""

    episode: EpisodeFacts = EpisodeFacts()
    engine: EngineFacts = EngineFacts()
    learner: LearnerFacts = LearnerFacts()
    network: NetworkFacts = NetworkFacts()
    failures: FailureFacts = FailureFacts()


def read_rates(path: Path) -> Rates:
    """Rates of a YAML or JSON file; of a run's folder, what its episodes were like.

    Raises:
        RecipeError: It cannot be read, a key is unknown or a value out of range.
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
        raise RecipeError(f"{path}  {problem_of(error, Rates)}") from None


def _measured(run_dir: Path) -> EpisodeFacts:
    """What episodes of a run were like."""
    episodes = [line["turns"] for line in stored_lines(run_dir) if line.get("turns")]
    if not episodes:
        raise RecipeError(f"{run_dir}: no episode on record to take rates from")
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
    """What episodes are like, with what the recipe allows where nothing was measured."""
    turns = facts.turns if facts.turns is not None else 1 + recipe.environment.max_turns / 2
    said = facts.turn_tokens if facts.turn_tokens is not None else max(1, recipe.rollout.max_new_tokens / 2)
    return EpisodeShape(
        turns=Spread(turns, facts.length_sigma if turns > 1 else 0.0),
        prompt_tokens=Spread(facts.prompt_tokens),
        turn_tokens=Spread(said, facts.length_sigma),
        observation_tokens=Spread(facts.observation_tokens),
        tool_seconds=Spread(facts.tool_seconds, facts.tool_sigma),
        reward_seconds=Spread(facts.reward_seconds),
    )


def mean_context(shape: EpisodeShape) -> float:
    """Tokens an episode has in view at its end, in the mean."""
    each = shape.turn_tokens.expected + shape.observation_tokens.expected
    return shape.prompt_tokens.expected + shape.turns.expected * each


def engine_rates(
    facts: EngineFacts, size: ModelSize, gpu: Gpu, *, tensor_parallel: int, sequences: int, context: float
) -> EngineRates:
    """One replica's rates.

    Args:
        sequences: For which it has room.
        context: Tokens a sequence has in view at its end.
    """
    flops = tensor_parallel * gpu.teraflops * 1e12 * facts.flops_efficiency
    bandwidth = tensor_parallel * gpu.memory_bandwidth * 1e9 * facts.bandwidth_efficiency
    token = 2 * size.parameters / flops
    step = 2 * size.parameters / bandwidth + (size.layers * _ALL_REDUCE if tensor_parallel > 1 else 0.0)
    keys = 4 * size.layers * size.keys * context / 2  # two bytes each of keys and values; half its end in the mean
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
    """The learner's rates.

    Args:
        together: GPUs that compute each layer together, and add up their parts of its states.
        travel: Parameters that replicas are sent.
        trained: Parameters that have a gradient.
        context: Tokens a sequence has in view at its end.
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
    )  # bytes a token, by each, in a ring
    return LearnerRates(
        seconds=fixed,
        seconds_per_token=each / (learners * gpu.teraflops * 1e12 * rates.learner.mfu)
        + sent * passes * together / (learners * network * 1e9 * 0.8),
        between_seconds=rates.learner.between_seconds,
        transfer_seconds=0.5 + 2 * travel / (network * 1e9 * 0.8 * adapters),
    )


def _or(measured: float | None, computed: float) -> float:
    return computed if measured is None else measured
