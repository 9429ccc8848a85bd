"""Validation of a whole recipe: keys without effect, and contradictory values.

A key that would be ignored is an error with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from whetstone.recipe.live_settings import LiveSettings
from whetstone.recipe.scale_settings import KEYS_OF_RAY
from whetstone.recipe.settings import SAMPLES, STAGE_KINDS, Recipe
from whetstone.recipe.stage_settings import (
    OptimizerSettings,
    RewardModelSettings,
    SamplingSettings,
    SupervisedSettings,
    get_data,
)


def find_contradictions(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield (key, problem) for values that contradict other values of the recipe."""
    if (recipe.policy.path is None) == (recipe.policy.tiny is None):
        problem = "set either path (a model folder) or tiny (a randomly initialized model)"
        yield "policy", problem + _suggest_nulls("policy", "path", "tiny", are_set=recipe.policy.path is not None)
    for name in recipe.policies.keys() & recipe.models.keys():
        yield f"policies.{name}", f'two members are named "{name}"; the other one is in models'
    yield from _stages(recipe)
    yield from _scale(recipe)
    if recipe.live is not None:
        yield from _live(recipe.live)
    tiny = recipe.policy.tiny
    if tiny is not None and tiny.hidden_size % tiny.num_heads:
        yield "policy.tiny.num_heads", f"must divide hidden_size ({tiny.hidden_size}), got {tiny.num_heads}"
    for stage, settings in recipe.own_stages.items():
        if settings.warmup_fraction + settings.decay_fraction > 1:
            problem = f"with warmup_fraction {settings.warmup_fraction:g} it exceeds the whole stage"
            yield f"{stage}.decay_fraction", problem
        yield from _until(stage, settings)
    if recipe.distillation is not None and recipe.teacher is None:
        yield (
            "distillation",
            "requires teacher: {path: FOLDER}, or teacher: {privileged_context: COLUMN} for self-distillation",
        )
    if recipe.teacher is not None and recipe.teacher.path is None and recipe.teacher.privileged_context is None:
        yield "teacher", "the policy with the same context is no teacher: set path or privileged_context"
    if recipe.aggregation.mode == "constant" and recipe.aggregation.tokens is None:
        yield "aggregation.tokens", "aggregation.mode: constant divides by a number of tokens; set it"
    for name in recipe.evaluation.suites:
        if not name.replace("-", "_").isidentifier():
            yield f"evaluation.suites.{name}", "names a folder; use letters, digits, - and _"
        if recipe.scale.on_ray or recipe.policies:
            what = "several `policies`" if recipe.policies else "scale.backend: ray"
            yield (
                f"evaluation.suites.{name}",
                f"cannot be evaluated with {what}; `whetstone evaluate` can, after the run",
            )
    faults = recipe.environment.fault_injection
    if faults is not None and not (faults.error_rate or faults.stale_rate or faults.delay_seconds):
        yield "environment.fault_injection", "injects no faults: set error_rate, stale_rate or delay_seconds"
    yield from _check_quantization(recipe)
    rollout = recipe.rollout
    if rollout.max_in_flight == "auto" and recipe.scale.on_ray:
        problem = f"auto adapts to one engine, and scale.backend is {recipe.scale.backend}; set a number"
        yield "rollout.max_in_flight", problem
    for number, tracker in enumerate(recipe.trackers):
        if tracker.name in (other.name for other in recipe.trackers[:number]):
            yield f"trackers.{number}", f'"{tracker.name}" is listed twice'
    if not all(rollout.stop_strings):
        yield "rollout.stop_strings", "an empty string ends every turn immediately; remove it"
    if recipe.reinforcement is not None and rollout.temperature != 1:
        cuts = {"top_k": rollout.top_k > 0, "top_p": rollout.top_p < 1, "min_p": rollout.min_p > 0}
        for key in (key for key, cut in cuts.items() if cut):
            problem = "the log-probs before truncation are known only at temperature 1; it is "
            yield f"rollout.{key}", f"{problem}{rollout.temperature:g} (rollout.temperature)"
    reinforcement = recipe.reinforcement
    if reinforcement is not None and reinforcement.minibatches > reinforcement.tasks_per_step:
        problem = (
            f"{reinforcement.minibatches} updates require at least as many groups, got {reinforcement.tasks_per_step}"
        )
        yield "reinforcement.minibatches", f"{problem} (reinforcement.tasks_per_step)"
    if reinforcement is not None and reinforcement.reference_sync_steps is not None and recipe.policy.lora is not None:
        problem = "with adapters (policy.lora) the reference is the base model, which does not change"
        yield "reinforcement.reference_sync_steps", problem
    if reinforcement is not None and reinforcement.max_staleness < reinforcement.admit_ahead:
        problem = f"must be admit_ahead ({reinforcement.admit_ahead}) or more, got {reinforcement.max_staleness}"
        yield "reinforcement.max_staleness", problem
    stored = reinforcement.offline_mixture if reinforcement is not None else None
    sources = reinforcement.sources if reinforcement is not None else {}
    total = sum(each.fraction for each in sources.values()) + (stored.fraction if stored is not None else 0.0)
    if sources and total >= 1:
        yield "reinforcement.sources", f"fractions of all sources sum to {total:g}; the sum must be below 1"
    for name in sources:
        if name == "stored" or not name.isidentifier():
            problem = "`stored` is offline_mixture; use another name of letters, digits and underscores"
            yield f"reinforcement.sources.{name}", problem
    if stored is not None and stored.mode == "critic_only" and recipe.critic is None:
        yield "reinforcement.offline_mixture.mode", "critic_only requires a critic; set critic: {}"
    smooth = reinforcement.consistency_regularization if reinforcement is not None else None
    if smooth is not None and smooth.policy == 0 and (recipe.critic is None or smooth.value == 0):
        yield "reinforcement.consistency_regularization", "has no effect: set policy, or value with a critic, above 0"
    if stored is not None and stored.off_policy == "truncated" and recipe.importance_correction is None:
        yield "reinforcement.offline_mixture.off_policy", "truncated requires importance_correction: truncated"


def _suggest_nulls(section: str, one: str, other: str, *, are_set: bool) -> str:
    """Format how to unset either of two keys, of which only one can be set; empty if neither is set."""
    remedy = f"; both are set: {section}.{other}=null keeps {one}, {section}.{one}=null keeps {other}"
    return remedy if are_set else ""


def _scale(recipe: Recipe) -> Iterator[tuple[str, str]]:
    scale, engine = recipe.scale, recipe.engine.name
    if scale.learner_processes % scale.learner_tensor_parallel:
        problem = f"{scale.learner_processes} processes (scale.learner_processes) are not divisible by"
        yield "scale.learner_tensor_parallel", f"{problem} {scale.learner_tensor_parallel}"
    if not scale.on_ray:
        return
    if scale.tensor_parallel > 1 and engine == "local":
        yield "scale.tensor_parallel", "engine local uses one device; vllm and sglang support several"
    if scale.engine_addresses and len(scale.engine_addresses) != scale.engine_replicas:
        problem = (
            f"{len(scale.engine_addresses)} addresses for {scale.engine_replicas} replicas (scale.engine_replicas)"
        )
        yield "scale.engine_addresses", problem
    if scale.engine_addresses and engine == "local":
        yield "scale.engine_addresses", "engine local is not a server; set engine: vllm or sglang"
    for kind in ("environment_workers", "engine_replicas"):
        count, most = getattr(scale, kind), getattr(scale, f"max_{kind}")
        if most is not None and most <= count:
            yield f"scale.max_{kind}", f"must be greater than scale.{kind} ({count}), got {most}"
    if scale.late_replicas and scale.engine_addresses:
        yield "scale.max_engine_replicas", "servers at scale.engine_addresses cannot be started later"
    if scale.colocated and scale.replica_gpus:
        yield "scale.replica_gpus", "with scale.colocated replicas are on the learner's GPUs; remove it"
    if recipe.live is not None:
        yield "scale", "`whetstone live` trains and serves in one process"


def _until(stage: str, settings: OptimizerSettings) -> Iterator[tuple[str, str]]:
    until = settings.until
    if until is None:
        return
    if until.success is None and until.plateau is None:
        yield f"{stage}.until", "has no condition: set success or plateau"
    if stage not in SAMPLES:
        for key, is_set in (("success", until.success is not None), ("monitor", until.monitor == "reward")):
            if is_set:
                yield f"{stage}.until.{key}", f"{stage} samples no episodes; measure its loss (plateau)"
    shortest = until.window + (until.plateau or 0) if until.success is None else until.window
    if shortest > settings.steps:
        problem = (
            f"is never reached: with window {until.window} it takes {shortest} steps, the stage has {settings.steps}"
        )
        yield f"{stage}.until", problem


def _live(live: LiveSettings) -> Iterator[tuple[str, str]]:
    if live.reward_weight == 0 and live.hint_weight == 0:
        yield "live.hint_weight", "neither rewards nor hints are trained on: set it or live.reward_weight above 0"
    if live.warmup_fraction + live.decay_fraction > 1:
        yield "live.decay_fraction", f"with warmup_fraction {live.warmup_fraction:g} it exceeds the whole stage"


def _stages(recipe: Recipe) -> Iterator[tuple[str, str]]:
    own = recipe.own_stages
    for kind, settings in own.items():
        data = get_data(settings)
        if data is not None and bool(data.path) == bool(data.from_stage):
            problem = "set either path (a file or a run) or from_stage (an earlier stage with episodes)"
            key = f"{kind}.data"
            yield key, problem + _suggest_nulls(key, "path", "from_stage", are_set=bool(data.path))
    if not own and not recipe.stages and recipe.live is None:
        yield "reinforcement", "neither supervised nor reinforcement is set, so there is nothing to do"
    missing = [kind for kind in own if recipe.stages and not any(kind in stage for stage in recipe.stages)]
    if missing:
        yield "stages", f"{missing[0]} is not a stage of the list; add it"
    for number, stage in enumerate(recipe.stages):
        kinds = [kind for kind in STAGE_KINDS if stage.get(kind) is not None]
        if len(kinds) != 1:
            problem = "no stage" if not kinds else f"{' and '.join(kinds)} in one stage"
            yield f"stages.{number}", f"has {problem}; each stage is one of {', '.join(STAGE_KINDS)}"
    if recipe.supervised is not None and recipe.supervised.data is not None:
        for key in ("tasks", "max_turns", "solved_only"):
            if getattr(recipe.supervised, key) != SupervisedSettings.model_fields[key].default:
                yield f"supervised.{key}", "demonstrations come from supervised.data, not from the source's expert"


def list_warnings(recipe: Recipe) -> Iterator[str]:
    """Yield warnings about settings that are valid but rarely intended."""
    if recipe.reinforcement is not None and recipe.reinforcement.train_on_observations:
        yield (
            "reinforcement.train_on_observations is ON: tool results are trained as if the policy had sampled them; "
            "update/observation_fraction is their fraction of the trained tokens"
        )


def find_unused_keys(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for keys that have no effect in this combination of keys."""
    for rule in _RULES:
        yield from rule(recipe)


def _advantage_needs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.reinforcement is None and not recipe.stages:
        for key in SAMPLING_KEYS if recipe.sampling is None and recipe.distillation is None else ():
            yield key, "there is no reinforcement stage (training is not set)"
        for key in CREDIT_KEYS if recipe.offline is None else ():
            yield key, "there is no reinforcement stage (training is not set)"
    if not recipe.stages:
        yield "repeat_stages", "there are no stages to repeat"
    if recipe.aggregation.mode != "constant":
        yield "aggregation.tokens", "only aggregation.mode: constant divides by it"
    if recipe.critic is not None and recipe.critic.ensemble_size == 1:
        for key in ("pessimism", "pessimism_coef"):
            yield f"critic.{key}", "critic.ensemble_size is 1, so there is no ensemble"
    elif recipe.critic is not None and recipe.critic.pessimism == "min":
        yield "critic.pessimism_coef", "critic.pessimism is min"
    if recipe.critic is not None and recipe.critic.loss == "success":
        yield "critic.clip", "with critic.loss: success values are probabilities and are not clipped"


def _check_quantization(recipe: Recipe) -> Iterator[tuple[str, str]]:
    members = {"policy": recipe.policy, **{f"policies.{name}": each for name, each in recipe.policies.items()}}
    for member, settings in members.items():
        lora, key = settings.lora, f"{member}.lora.quantization"
        if lora is None or lora.quantization is None:
            continue
        if lora.dora:
            yield f"{member}.lora.dora", f"DoRA reads the norms of unquantized weights; remove it or {key}"
        if recipe.scale.on_ray or recipe.scale.learner_processes > 1:
            yield key, "4-bit weights are computed in one process; remove scale, or quantization"
        if recipe.engine.name != "local" and recipe.engine.options.get("address") is not None:
            yield key, "the server at engine.address has other base weights than these 4-bit ones; use engine: local"


def _adapters_need_layers(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.policy.lora is not None:
        yield "policy.freeze", "with adapters (policy.lora) all base weights are frozen"


def _decay_needs_a_share(recipe: Recipe) -> Iterator[tuple[str, str]]:
    for stage, settings in recipe.own_stages.items():
        if settings.decay_fraction == 0:
            yield f"{stage}.decay", f"{stage}.decay_fraction is 0, so the learning rate does not fall"


def _until_needs_a_plateau(recipe: Recipe) -> Iterator[tuple[str, str]]:
    for stage, settings in recipe.own_stages.items():
        if settings.until is not None and settings.until.plateau is None:
            for key in ("monitor", "min_delta"):
                yield f"{stage}.until.{key}", f"{stage}.until.plateau is not set"


def _some_learn_otherwise(recipe: Recipe) -> Iterator[tuple[str, str]]:
    own = SamplingSettings.__annotations__.keys() | {"checkpoint_interval_steps", "keep_last", "keep_interval_steps"}
    for name in SamplingSettings.model_fields if recipe.sampling is not None else ():
        if name not in own:
            yield f"sampling.{name}", "a sampling stage does not train"
    for name in RewardModelSettings.model_fields if recipe.reward_model is not None else ():
        if name not in RewardModelSettings.__annotations__:
            yield f"reward_model.{name}", "its reward head is fitted in one step"


def _live_goes_on(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.live is not None:
        yield "live.until", "live learning continues as long as the policy is served"
        if not recipe.own_stages and not recipe.stages:
            yield "trackers", "`whetstone live` writes its metrics only to metrics.jsonl"
        if recipe.live.decay_fraction == 0:
            yield "live.decay", "live.decay_fraction is 0, so the learning rate does not fall"


def _clip_needs_minibatches(recipe: Recipe) -> Iterator[tuple[str, str]]:
    updates = recipe.reinforcement.minibatches * recipe.reinforcement.epochs if recipe.reinforcement is not None else 0
    if updates == 1 and recipe.objective.name in ("clipped", "entropy_balanced", "gspo"):
        for key in ("clip_low", "clip_high", "dual_clip"):
            reason = (
                "with one minibatch and one epoch (reinforcement.minibatches, reinforcement.epochs) every ratio is 1"
            )
            yield f"objective.{key}", reason


def _trust_needs_a_folder(recipe: Recipe) -> Iterator[tuple[str, str]]:
    has_teacher = recipe.teacher is not None and recipe.teacher.path is not None
    if recipe.policy.path is None and not has_teacher and "frozen" not in recipe.rollout.strategy.options:
        yield "policy.trust_remote_code", "no model of the recipe comes from a folder"


def _revision_needs_the_hub(recipe: Recipe) -> Iterator[tuple[str, str]]:
    path = recipe.policy.path
    if path is None or "/" not in path or Path(path).is_dir():
        yield "policy.revision", "only a model of the Hugging Face hub (policy.path: owner/model) has revisions"


def _teacher_of_its_own(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.teacher is not None and recipe.teacher.path is None:
        for key in ("device", "offload"):
            yield f"teacher.{key}", "the teacher is the policy itself (teacher.path is not set)"


def _reference_needs_weight(recipe: Recipe) -> Iterator[tuple[str, str]]:
    settings = recipe.reinforcement
    if settings is not None and not recipe.has_reference:
        yield "reinforcement.reference_estimator", "reinforcement.reference_kl is 0, so no divergence is estimated"
    if settings is not None and settings.reference_sync_steps is None:
        yield (
            "reinforcement.reference_mixup_alpha",
            "reinforcement.reference_sync_steps is not set: the reference does not change",
        )


def _overflow_needs_views(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if not recipe.rollout.context_transforms:
        yield "rollout.on_context_overflow", "there are no context transforms (rollout.context_transforms)"


def _samples_need_temperature(recipe: Recipe) -> Iterator[tuple[str, str]]:
    evaluation = recipe.evaluation
    if evaluation.temperature == 0 and evaluation.samples > 1:
        yield "evaluation.samples", "at evaluation.temperature: 0 every sample of a task is the same"
    if evaluation.strategy is not None and evaluation.temperature == 0:
        yield "evaluation.strategy", "at evaluation.temperature: 0 every try of a task is the same"
    if evaluation.strategy is not None and evaluation.samples > 1:
        yield "evaluation.samples", "evaluation.strategy sets the number of attempts per task"
    if recipe.reinforcement is None or recipe.reinforcement.keep == "last":
        yield "evaluation.validation_episodes", "reinforcement.keep is last, so no checkpoint is selected"
    if evaluation.interval_steps is None:
        yield (
            "evaluation.interval_episodes",
            "evaluation.interval_steps is not set, so there is no evaluation during reinforcement",
        )


def _calls_need_tools(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.environment.name == "tools" and not recipe.environment.options.get("tools"):
        for key in ("max_calls_per_turn", "tool_timeout_seconds", "max_result_characters"):
            yield f"environment.{key}", "the environment has no tools"


def _controls_need_stops(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if not recipe.rollout.early_stopping:
        yield "rollout.early_stopping_control_fraction", "rollout.early_stopping is empty, so no episode is stopped"


def _ahead_needs_a_distance(recipe: Recipe) -> Iterator[tuple[str, str]]:
    reinforcement = recipe.reinforcement
    if reinforcement is not None and reinforcement.admit_ahead == 0:
        for key in ("max_staleness", "in_flight", "deterministic"):
            yield f"reinforcement.{key}", "reinforcement.admit_ahead is 0, so sampling does not run ahead"
    elif reinforcement is not None and reinforcement.deterministic:
        yield "reinforcement.in_flight", "with reinforcement.deterministic no request is in flight when weights change"


def _stored_options_need_their_use(recipe: Recipe) -> Iterator[tuple[str, str]]:
    stored = recipe.reinforcement.offline_mixture if recipe.reinforcement is not None else None
    if stored is None:
        return
    for mode, keys in {
        "critic_only": ("critic_weight", "critic_discount", "simulation_weight"),
        "alternating": ("inner_updates", "outer_rate"),
    }.items():
        if stored.mode != mode:
            for key in keys:
                yield (
                    f"reinforcement.offline_mixture.{key}",
                    f"reinforcement.offline_mixture.mode is {stored.mode}, not {mode}",
                )
    if stored.sampling == "uniform":
        yield "reinforcement.offline_mixture.sampling_strength", "reinforcement.offline_mixture.sampling is uniform"
    if stored.mode == "critic_only":
        yield (
            "reinforcement.offline_mixture.off_policy",
            "reinforcement.offline_mixture.mode is critic_only: only critics are trained on stored groups",
        )


def _places_need_ray(recipe: Recipe) -> Iterator[tuple[str, str]]:
    scale = recipe.scale
    if not scale.on_ray:
        for key in KEYS_OF_RAY:
            yield f"scale.{key}", "scale.backend is none: the run has one process"
    elif scale.engine_replicas == 1 and not scale.late_replicas:
        yield "scale.routing", "there is one engine replica (scale.engine_replicas)"
    if scale.backend != "ray":
        yield "scale.address", f"scale.backend is {scale.backend}, and only `ray` connects to an existing cluster"
        for kind in ("environment_workers", "engine_replicas"):
            yield f"scale.max_{kind}", f"scale.backend is {scale.backend}, and only a cluster (`ray`) grows"
    if scale.learner_processes == 1:
        yield "scale.learner_tensor_parallel", "scale.learner_processes is 1: layers are not split"
    if scale.mirror_url is None:
        yield "scale.mirror_interval_seconds", "scale.mirror_url is null: nothing is copied"
    if scale.backend != "local-ray":
        yield (
            "scale.object_store_mib",
            f"scale.backend is {scale.backend}, and only `local-ray` creates an object store",
        )


SAMPLING_KEYS = (
    "curriculum", "rollout.strategy", "rollout.budget_allocation", "rollout.start_states",
    "rollout.action_mask", "rollout.replay", "rollout.trajectory_filters", "rollout.dynamic_sampling",
    "rollout.group_size",
)  # fmt: skip
"""Keys that only stages with sampling read; the other keys of `rollout` also apply to evaluations."""
CREDIT_KEYS = (
    "advantage", "reward_shaping", "advantage_transforms", "credit_filters", "custom_columns", "role_tag", "objective",
    "loss_terms", "aggregation", "importance_correction", "critic",
)  # fmt: skip
"""Keys that only stages with credit assignment read."""
_RULES: tuple[Callable[[Recipe], Iterator[tuple[str, str]]], ...] = (
    _advantage_needs,
    _adapters_need_layers,
    _decay_needs_a_share,
    _until_needs_a_plateau,
    _some_learn_otherwise,
    _live_goes_on,
    _clip_needs_minibatches,
    _trust_needs_a_folder,
    _revision_needs_the_hub,
    _teacher_of_its_own,
    _reference_needs_weight,
    _overflow_needs_views,
    _samples_need_temperature,
    _calls_need_tools,
    _ahead_needs_a_distance,
    _controls_need_stops,
    _stored_options_need_their_use,
    _places_need_ray,
)
