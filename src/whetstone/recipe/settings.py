"""Recipe keys: types, defaults and bounds.

The file, the command line and Python share these fields; an unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from whetstone.plugins import to_serializable
from whetstone.recipe.critic_settings import CriticSettings, ProcessModelSettings
from whetstone.recipe.error_messages import describe_validation_error
from whetstone.recipe.live_settings import LiveSettings
from whetstone.recipe.policy_settings import MemberSettings, PolicySettings
from whetstone.recipe.resolve_paths import split_start
from whetstone.recipe.scale_settings import ScaleSettings, coerce_backend
from whetstone.recipe.settings_base import (
    LossTermPart,
    Part,
    Seconds,
    Settings,
    coerce_list,
    coerce_mode,
    coerce_name,
    list_changeable_fields,
)
from whetstone.recipe.stage_settings import (
    DistillationSettings,
    OfflineSettings,
    OptimizerSettings,
    PreferenceSettings,
    PretrainingSettings,
    ReinforcementSettings,
    RewardModelSettings,
    SamplingSettings,
    SupervisedSettings,
    coerce_items,
)

MIN_AUTO_EPISODES, MAX_AUTO_EPISODES = 4, 512
"""Smallest and largest number of concurrent episodes with `rollout.max_in_flight: auto`."""


class StartSettings(Settings):
    """Checkpoint of another run from which a new run starts. Short form: `RUN` or `RUN@STEP`."""

    path: str
    """Run directory (of a chain of stages, the last one is used), or a checkpoint directory. The run stores the
    checkpoint that it started from."""
    step: int | None = Field(None, ge=0)
    """Number of the checkpoint, as in `checkpoints/step-000050`; null: the latest one."""
    what: Literal["weights", "all"] = "weights"
    """`weights`: only the weights. `all`: also the state of optimizer, critics and stateful components (replay buffers,
    curriculum); requires that the first stage has the kind and optimizer of the checkpoint's stage. Steps, schedules
    and tasks start from the beginning in both cases."""


def coerce_start() -> BeforeValidator:
    """Return a validator that accepts `RUN` or `RUN@STEP` instead of a mapping."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        path, step = split_start(value)
        return {"path": path, "step": step}

    return BeforeValidator(read)


class ChatSettings(Settings):
    """Settings of the conversion between messages and tokens."""

    format: str = "auto"
    """Tool-call format by name. `auto`: the format of the model's chat template; if the template has none, and for a
    tiny model, `hermes`, with the tools in the system message."""
    variables: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Additional variables of the model's chat template, such as `{enable_thinking: false}`. A variable that the
    template does not use is an error."""


_Date = Annotated[str, BeforeValidator(lambda value: value.isoformat() if isinstance(value, date) else str(value))]
"""Date in ISO 8601; YAML reads an unquoted one as a date, and a year as an integer."""


class TasksSettings(BaseModel):
    """Task source; every other key is an option of the source."""

    model_config = ConfigDict(extra="allow", frozen=True)

    source: str
    """Name of the source, such as `arithmetic` or `jsonl`; or `package.module:name`."""
    date: str | None = None
    """Column with the date of a task (a tag or a private column), such as `created_at`; null: tasks have no dates."""
    since: _Date | None = None
    """First date of tasks to use, such as `2024-06-01`; null: all."""
    until: _Date | None = None
    """End of the dates of tasks to use, not included, so that `since` and `until` of one date divide the tasks."""
    held_out_since: _Date | None = None
    """Temporal split: tasks from this date are held out, and earlier ones are trained on; null: the source's split."""
    cutoff: _Date | None = None
    """Knowledge cutoff (release date) of the model. Tasks receive the tag `cutoff`: `after` or `before`, by which
    evaluations report success; older tasks can be in the model's training data (contamination)."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of the source: all keys that are not fields of this class."""
        return dict(self.model_extra or {})


class EnvironmentSettings(BaseModel):
    """Environment and limits of its episodes; every other key is an option of the environment."""

    model_config = ConfigDict(extra="allow", frozen=True)
    CHANGES: ClassVar = list_changeable_fields(
        none="effects allow_effects", sampling="timeout_seconds turn_timeout_seconds"
    )

    name: str = "tools"
    """Name of the environment, such as `tools` or `frozen_lake`; or `package.module:Class`."""
    max_turns: int = Field(8, ge=1)
    """Maximum number of turns of an episode; a longer episode is truncated."""
    timeout_seconds: float = Field(300.0, gt=0)
    """Deadline of an episode from reset to its last turn, including waiting times; its verdict has as long again."""
    turn_timeout_seconds: Seconds | Literal["auto", "none"] = "auto"
    """Deadline of one action and its observation, including waiting times. `auto`: 20 times the 95th percentile of
    measured turns, at least 60 seconds, once 64 turns are measured. `none`: the deadline of the episode only."""
    fault_injection: NoiseSettings | None = None
    """Random failures, stale results and delays of actions; null injects none."""
    effects: dict[str, Literal["read", "write", "destructive"]] | None = None
    """Side effects of tools outside of the episode: tool → effect; overrides the effects that the tools declare."""
    allow_effects: bool | list[str] | None = None
    """Permission for real calls of tools with the effects `write` and `destructive`: true for all, or their names."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of the environment: all keys that are not fields of this class."""
        return dict(self.model_extra or {})


class ModelSettings(Settings):
    """Frozen model that the policy or an environment can call.

    Exactly one of `path`, `url` and `function` is required.
    """

    CHANGES: ClassVar = list_changeable_fields(none="url api_key_env price")

    path: str | None = None
    """Run directory (its last checkpoint, with the chat format of the run), or a model folder, see `policy.path`."""
    url: str | None = None
    """Base URL of an OpenAI-compatible API, such as `http://localhost:8000/v1`."""
    function: str | None = None
    """`package.module:function` of (conversation, tools, seed) → a message or a text, plain or async."""
    model: str = ""
    """Name of the model at `url`."""
    api_key_env: str = ""
    """Environment variable with the API key for `url`."""
    price: float = Field(0.0, ge=0)
    """Price of one call, in the unit of `cost`."""
    seconds: float | None = Field(None, ge=0)
    """Duration of a call, as described to the policy."""
    skill: str = ""
    """Strengths of the model, as described to the policy."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature; 0: greedy."""
    max_new_tokens: int = Field(256, ge=1)
    """Maximum number of tokens per answer."""

    @model_validator(mode="after")
    def _is_one(self) -> ModelSettings:
        sources = [key for key in ("path", "url", "function") if getattr(self, key) is not None]
        if len(sources) != 1:
            raise ValueError(f"a model is one of path, url and function, got {' and '.join(sources) or 'none'}")
        if self.url is None and (self.model or self.api_key_env):
            raise ValueError("model and api_key_env require url")
        return self


class NoiseSettings(Settings):
    """Fault injection: random failures, stale results and delays of actions, seeded by the episode's seed."""

    error_rate: float = Field(0.0, ge=0, lt=1)
    """Probability that an action fails and is not executed."""
    stale_rate: float = Field(0.0, ge=0, lt=1)
    """Probability that an action returns the result of the previous action."""
    delay_seconds: float = Field(0.0, ge=0)
    """Median of the additional duration of an action."""
    delay_sigma: float = Field(1.0, ge=0)
    """σ of the log-normal distribution of delays."""


class RolloutSettings(Settings):
    """Sampling of trajectories for training: strategy, group size, limits and filters."""

    CHANGES: ClassVar = list_changeable_fields(
        none="max_in_flight",
        sampling=(
            "group_size temperature top_k top_p min_p stop_strings max_new_tokens on_context_overflow "
            "group_timeout_seconds reward_timeout_seconds"
        ),
    )

    strategy: Annotated[Part, coerce_name("independent")] = Part(name="independent")
    """Sampling strategy for the trajectories of a task: `independent`, `random_branching`, `entropy_branching`, …"""
    budget_allocation: Annotated[Part | None, coerce_name()] = None
    """Rule for group size and turn limit of each group, such as `horizon_stages`; null: the same for every group."""
    start_states: Annotated[Part | None, coerce_name()] = None
    """States from which episodes start, such as `expert_prefix`; null: the initial state of the task."""
    context_transforms: Annotated[list[Annotated[Part, coerce_name()]], coerce_list()] = []
    """Additional context for the policy, such as `demonstrations` or `budget_line`."""
    on_context_overflow: Literal["drop", "refuse"] = "drop"
    """Treatment of additional context that exceeds the context length: `drop` or `refuse`."""
    early_stopping: Annotated[list[Annotated[Part, coerce_name()]], coerce_list()] = []
    """Conditions that end an episode early, such as `void_turn`."""
    early_stopping_control_fraction: float = Field(0.0, ge=0, lt=1)
    """Fraction of the episodes that a condition would stop, and that continue instead, without a trace in the prompt.
    They measure the turns saved and the successes lost (metrics `early_stopping/*`)."""
    context_rewrites: Annotated[list[Annotated[Part, coerce_name()]], coerce_list()] = []
    """Rewrites of the conversation history between turns, such as `summary`, `rollback`."""
    environment_wrapper: Annotated[Part | None, coerce_name()] = None
    """Wrapper of the environment, such as `try_again`."""
    action_mask: Annotated[Part | None, coerce_name()] = None
    """Action mask of a fraction of turns that falls to 0 over training, such as `admissible`; null: no mask."""
    replay: Annotated[list[Annotated[Part, coerce_name()]], coerce_list()] = []
    """Stored trajectories that are added to groups, such as `success_replay`."""
    trajectory_filters: Annotated[list[Annotated[Part, coerce_name()]], coerce_list()] = []
    """Filters of the trajectories of a step before training, such as `resample_on_correct`."""
    dynamic_sampling: Annotated[Part | None, coerce_name()] = None
    """Filter of groups, such as `nonzero_variance`; rejected groups are replaced by new ones."""
    group_size: int = Field(8, ge=1)
    """Number of trajectories per task. With 1, only estimators without a group baseline have a signal."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature in training."""
    top_k: int = Field(0, ge=0)
    """Number of most likely tokens that can be sampled; 0: all. With `top_k`, `top_p` or `min_p`, the recorded
    log-probs are those of the full distribution, as computed by the learner; training then requires `temperature` 1.
    Also applies to evaluations that are not greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: cumulative probability of the most likely tokens that can be sampled."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Minimum probability of a token relative to the most likely one."""
    stop_strings: list[str] = []
    """Strings that end a turn when they are generated, in addition to the stop strings of the chat format."""
    max_new_tokens: int = Field(256, ge=1)
    """Maximum number of tokens per turn."""
    max_in_flight: Annotated[int, Field(ge=1)] | Literal["auto"] = 256
    """Maximum number of concurrent episodes. `auto`: adapted to the free KV cache of the engine, from 4 to 512; if the
    cache is full, the youngest episodes are cancelled and played again later. Not with
    Ray (`scale.backend`)."""
    group_timeout_seconds: Seconds | Literal["auto", "none"] = "auto"
    """Deadline from a group's first episode to its last; episodes that are not finished then end by `timeout` with the
    turns that they have. `auto`: 10 times the 95th percentile of measured groups, at least 5 minutes, once 16 groups
    are measured. `none`: no deadline."""
    reward_timeout_seconds: float = Field(600.0, gt=0)
    """Deadline for the reward of one episode, or of one group if the reward compares episodes; afterwards there is no
    score."""

    @property
    def max_episodes(self) -> int:
        """Maximum number of concurrent episodes as a number; for `auto` the upper end of its range."""
        return MAX_AUTO_EPISODES if self.max_in_flight == "auto" else self.max_in_flight


class AggregationSettings(Settings):
    """Weight of each token's loss in an update."""

    CHANGES: ClassVar = list_changeable_fields(update="mode tokens")

    mode: Literal["token_mean", "sequence_sum", "sequence_mean", "constant"] = "token_mean"
    """`token_mean`: mean over all tokens of the update. `sequence_sum`: sum over the tokens of a sequence, mean over
    sequences. `sequence_mean`: mean over the tokens of a sequence, then over sequences. `constant`: sum of all tokens
    divided by a constant."""
    tokens: int | None = Field(None, ge=1)
    """Constant of the mode `constant`: the token budget of an episode."""


class TeacherSettings(Settings):
    """Teacher model whose log-probs of the sampled tokens are distilled."""

    CHANGES: ClassVar = list_changeable_fields(none="device offload")

    path: str | None = None
    """Frozen teacher model with the policy's tokenizer, named like `policy.path`; can be a checkpoint. Null: the policy
    with its weights before each step's updates; requires `privileged_context`."""
    privileged_context: str | None = None
    """Text inserted before the task that only the teacher reads: a private column of tasks, such as `solution`, or
    `package.module:function` of (task, trajectory) → text or None; null inserts none."""
    device: str | None = None
    """Device of the teacher, see `policy.device`; null: that of the policy."""
    offload: bool = False
    """Keep the teacher on the CPU and move it to its device for each forward pass. Saves memory and takes longer."""


class SuiteSettings(BaseModel):
    """Evaluation suite: further tasks, which are evaluated before training and after every stage.

    Other keys are those of the recipe that differ, as in `ablations`: `tasks`, `environment` and `reward`, as a section
    or as a dotted key such as `tasks.levels`.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    stage: str | int | None = None
    """Stage that trains on the tasks of the suite: its number from 1, its kind or its name; null: no stage does."""
    episodes: int | None = Field(None, ge=1)
    """Number of held-out tasks; null: `evaluation.episodes`."""

    @property
    def changed_keys(self) -> dict[str, Any]:
        """Recipe keys of the suite that differ from those of the run."""
        return dict(self.model_extra or {})


class EvaluationSettings(Settings):
    """Evaluation on held-out tasks, before and after each stage."""

    CHANGES: ClassVar = list_changeable_fields(evaluation="interval_steps interval_episodes")

    episodes: int = Field(500, ge=1)
    """Number of held-out test tasks; fewer if the source has fewer."""
    samples: int = Field(1, ge=1)
    """Episodes per task; more than one gives pass@k."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature of evaluations; 0: greedy."""
    strategy: Annotated[Part | None, coerce_name()] = None
    """Strategy that selects one answer from several attempts, such as `best_of`, `majority_vote`, `tree_search`; null:
    every attempt is scored."""
    interval_steps: int | None = Field(None, ge=1)
    """Number of steps between evaluations during reinforcement; null: only before and after stages."""
    interval_episodes: int = Field(100, ge=1)
    """Number of held-out tasks of the evaluations at `interval_steps`."""
    validation_episodes: int = Field(200, ge=1)
    """Number of validation tasks of `reinforcement.keep: best`: the held-out tasks of the source that follow the test
    tasks, the first `episodes`."""
    suites: dict[str, SuiteSettings] = Field(default_factory=dict)
    """Evaluation suites by name, from which `summary.json` and the report show forgetting and transfer."""


_PRETRAINED_RATE, _ADAPTERS_RATE = 1e-6, 1e-5
"""Default learning rates of reinforcement for pretrained models, as in verl and TRL: all weights, adapters."""
_IMITATION = 10
"""Factor of the pretrained learning rates in supervised stages."""
_TINY_MUON_RATE, _TINY_RATE, _TINY_DECAY, _TINY_GROUPS = 3e-3, 3e-4, 0.9, 32
"""Defaults of reinforcement for a tiny policy after a supervised stage: learning rate with Muon, learning rate with
AdamW, fraction of the decay, and `full_rate_groups`."""
DEFAULT_ADVANTAGE = Part(name="group_relative")
MEMORY_NEW = "new"
"""Value of `init_state_from` for components that start without state."""
STAGE_KINDS = (
    "pretraining", "sampling", "supervised", "preference", "offline", "reward_model",
    "distillation",     "reinforcement",
)  # fmt: skip
"""Kinds of stages, in their default order."""
SAMPLES = ("sampling", "distillation", "reinforcement")
"""Kinds of stages that sample episodes."""


def _gentle(supervised: SupervisedSettings, reinforcement: ReinforcementSettings) -> dict[str, Any]:
    """Return defaults of reinforcement that do not undo the supervised stage of a tiny policy."""
    is_set = "optimizer" in reinforcement.model_fields_set
    optimizer = reinforcement.optimizer if is_set else supervised.optimizer
    defaults = {"optimizer": optimizer, "decay_fraction": _TINY_DECAY}
    if "learning_rate" not in reinforcement.model_fields_set:
        rate = _TINY_MUON_RATE if optimizer.startswith("muon") else _TINY_RATE
        defaults |= {"learning_rate": rate, "full_rate_groups": _TINY_GROUPS}
    return defaults


class Recipe(Settings):
    """All settings of a run.

    In Python, functions and classes can be used instead of component names.

    Raises:
        RecipeError: If a key is unknown, missing or has the wrong type; the message is one line.
    """

    CHANGES: ClassVar = list_changeable_fields(
        none="title paper trackers scale ablations store_code",
        update=(
            "advantage reward_shaping advantage_transforms credit_filters objective loss_terms aggregation "
            "importance_correction"
        ),
        sampling="engine",
    )

    def __init__(self, **keys: Any) -> None:
        try:
            super().__init__(**to_serializable(keys))
        except ValidationError as error:
            raise describe_validation_error(error, Recipe, keys) from None

    @model_validator(mode="before")
    @classmethod
    def _first_is_policy(cls, keys: Any) -> Any:
        policies = keys.get("policies") if isinstance(keys, Mapping) else None
        first = next(iter(policies.values()), None) if isinstance(policies, Mapping) else None
        if not isinstance(first, Mapping):
            return keys
        own = {key: value for key, value in first.items() if key in PolicySettings.model_fields}
        return {**keys, "policy": {**own, **(keys.get("policy") or {})}}

    @model_validator(mode="after")
    def _rates_suit_the_policy(self) -> Recipe:
        if self.policy.path is None:
            if self.supervised is not None and self.reinforcement is not None:
                self._suit("reinforcement", _gentle(self.supervised, self.reinforcement))
            return self
        rate = _PRETRAINED_RATE if self.policy.lora is None else _ADAPTERS_RATE
        for key in self.own_stages:
            if key != "reward_model":
                suits = _IMITATION * rate if key in ("pretraining", "supervised") else rate
                self._suit(key, {"learning_rate": suits})
        return self

    def _suit(self, key: str, defaults: Mapping[str, Any]) -> None:
        """Set other defaults for keys of a stage that are not set.

        The keys still count as unset, so they follow later changes.
        """
        stage = getattr(self, key)
        unset = {name: value for name, value in defaults.items() if name not in stage.model_fields_set}
        suited = stage.model_copy(update=unset)
        suited.model_fields_set.difference_update(unset)
        self.__dict__[key] = suited

    @property
    def has_reference(self) -> bool:
        """Whether a built-in loss term of reinforcement reads a frozen reference model."""
        terms = {term.name for term in self.loss_terms}
        return self.reinforcement is not None and (
            self.reinforcement.holds_on or bool(terms & {"reference_kl", "first_attempt_kl"})
        )

    @property
    def own_stages(self) -> dict[str, OptimizerSettings]:
        """Stages at the top level of the recipe by kind, in the order in which they run."""
        stages = {kind: getattr(self, kind) for kind in STAGE_KINDS}
        return {kind: settings for kind, settings in stages.items() if settings is not None}

    title: str = ""
    """Title of reports."""
    paper: str = ""
    """Paper that the recipe follows, such as `arXiv:2402.03300`."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of all random numbers."""
    policy: PolicySettings
    """Model that is trained; with `policies`, the first one."""
    policies: dict[str, MemberSettings] = {}
    """Several models by name, each with the keys of `policy`; `policy` is the short form for one, and its keys override
    those of the first. The others play the seats that have their names, or those that
    `rollout.strategy.members` specifies, or are learned rewards (`reward: {name: reward_model, member: NAME}`). See
    `docs/guide/members.md`."""
    chat: ChatSettings = ChatSettings()
    """Chat format: how messages and tool calls become text."""
    tasks: TasksSettings
    """Task source."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """Environment of the episodes, with its tools."""
    models: dict[str, ModelSettings] = {}
    """Frozen models by name: tools of the policy (`environment.tools: [models]`), or modules of a planner."""
    curriculum: Annotated[Part | None, coerce_name()] = None
    """Order of tasks, such as `ucb`, `stages`; null: the order of the source."""
    reward: Annotated[Part, coerce_name()]
    """Reward of an episode, such as `exact_number`; or `package.module:function`."""
    rollout: RolloutSettings = RolloutSettings()
    """Sampling of episodes for training."""
    engine: Annotated[Part, coerce_name("local")] = Part(name="local")
    """Sampling engine: `local`, in this process; `vllm` or `sglang`, a server; or `package.module:Class`."""
    learner: Annotated[Part, coerce_name("local")] = Part(name="local")
    """Learner: `local`, in this process; or `package.module:Class`."""
    scale: Annotated[ScaleSettings, coerce_backend()] = ScaleSettings()
    """Processes and machines of the run: this process, components placed by Ray (`local-ray`, `ray`; see
    `docs/guide/ray.md`), or several learner processes (`docs/guide/scaling-learners.md`). Does not change
    the results of runs that are a function of their recipe; a run can resume with another value."""
    supervised: SupervisedSettings | None = None
    """Supervised warm-up; null disables it."""
    reinforcement: ReinforcementSettings | None = None
    """Reinforcement; null disables it."""
    pretraining: PretrainingSettings | None = None
    """Pretraining on plain text, before all other stages; null disables it."""
    sampling: SamplingSettings | None = None
    """Sampling of episodes for a later stage, without training; null disables it."""
    preference: PreferenceSettings | None = None
    """Preference optimization, after the warm-up; null disables it."""
    offline: OfflineSettings | None = None
    """Offline reinforcement learning on stored episodes, before `reinforcement`; null disables it."""
    reward_model: RewardModelSettings | None = None
    """Training of a reward model for later reinforcement; null disables it."""
    distillation: DistillationSettings | None = None
    """Distillation from `teacher` on episodes of the policy; null disables it."""
    start_from: Annotated[StartSettings | None, coerce_start()] = None
    """Checkpoint of another run from which this run starts instead of `policy.path` or `policy.tiny`, such as
    `runs/shop@50`; see `docs/guide/continuing.md`."""
    init_state_from: Annotated[list[str], coerce_items()] = []
    """Runs or checkpoints from which stateful components (lessons, replay buffers, a curriculum) load their initial
    state, if this recipe has the same component with the same options; later entries take precedence. By default,
    each of `stages` loads the state of the stages before it; `new` starts without state."""
    live: LiveSettings | None = None
    """Live learning while serving (`whetstone live`); not a stage of a run. See `docs/guide/agents.md`."""
    stages: list[dict[str, Any]] = []
    """Stages in any number and order, instead of the keys above: each a mapping with one stage, and other recipe keys
    that differ in it. Top-level keys of a kind of stage apply to all stages of that kind. See
    `docs/guide/stages.md`."""
    repeat_stages: int = Field(1, ge=1)
    """Number of passes over all of `stages`; each pass continues from the result of the previous one."""
    advantage: Annotated[Part, coerce_name("group_relative")] = DEFAULT_ADVANTAGE
    """Advantage estimator, such as `group_relative`, `token_gae`."""
    reward_shaping: Annotated[list[Annotated[Part, coerce_name()]], coerce_list()] = []
    """Transformations of the rewards before advantages are computed, such as `overlong`, `gated`, `kl_penalty`."""
    advantage_transforms: Annotated[list[Annotated[Part, coerce_name()]], coerce_list()] = []
    """Transformations of advantages after the estimator, such as `entropy_modulated`, `clip_cov`; in this order."""
    credit_filters: Annotated[list[Annotated[Part, coerce_name()]], coerce_list()] = []
    """Turns that are not trained, such as `void_turns`; each filter defines whether they count in statistics."""
    custom_columns: Annotated[list[Annotated[Part, coerce_name()]], coerce_list()] = []
    """User-defined columns, `package.module:name` each, that estimators and objectives read by name; see
    `docs/reference/methods.md`."""
    role_tag: str | None = None
    """Task tag with the role of an episode, for estimators that compare episodes of the same role. Self-play does not
    need the tag: each seat is a role."""
    objective: Annotated[Part, coerce_name("clipped")] = Part(name="clipped")
    """Policy loss, such as `clipped`, `gspo`."""
    loss_terms: Annotated[list[Annotated[LossTermPart, coerce_name()]], coerce_list()] = []
    """Terms that are added to the objective, such as `{name: entropy, weight: 0.001}` or `{name: "my_losses:brevity",
    weight: 0.01, over: sampled}`; see `docs/guide/own-method.md`."""
    aggregation: Annotated[AggregationSettings, coerce_mode()] = AggregationSettings()
    """Weight of each token's loss in an update."""
    importance_correction: Annotated[Part | None, coerce_name()] = None
    """Importance weights of off-policy tokens, such as `masked`, `truncated`; null weighs all tokens equally."""
    critic: CriticSettings | None = None
    """Critics, if `advantage` reads values."""
    teacher: TeacherSettings | None = None
    """Teacher model, if `objective` reads its log-probs."""
    implicit_prm: ProcessModelSettings | None = None
    """Implicit process reward model, for estimators that read implicit rewards of turns."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Evaluation on held-out tasks."""
    trackers: Annotated[list[Annotated[Part, coerce_name()]], coerce_list()] = []
    """Trackers that receive the metrics of the run: `tensorboard`, `wandb`, `mlflow`, `trackio`, or
    `package.module:Class`; see `docs/guide/trackers.md`. They do not affect results; a resumed run can have others."""
    store_code: bool = False
    """Copy the custom code of the recipe (rewards, tools, estimators, environments, and their imports from the
    same folder) into the run directory, as `code/`. Files with secrets are left out. Digests are always stored."""
    ablations: dict[str, dict[str, Any]] = {}
    """Changed keys by name of the ablation; each ablation is trained and evaluated after the run, and shown in its
    report."""
