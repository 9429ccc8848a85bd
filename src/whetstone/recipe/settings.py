"""What can a recipe say? Every key, its type, its default and its bounds, declared once.

The file, the command line and Python read the same fields; an unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from whetstone.plugins import with_names
from whetstone.recipe.critic_settings import CriticSettings, ProcessModelSettings
from whetstone.recipe.live_settings import LiveSettings
from whetstone.recipe.parts import LossTermPart, Part, Seconds, Settings, changeable, listed, mode_alone, named
from whetstone.recipe.policy_settings import MemberSettings, PolicySettings
from whetstone.recipe.problems import problem_of
from whetstone.recipe.scale_settings import ScaleSettings, backend_alone
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
    several,
)
from whetstone.recipe.start_settings import StartSettings, start_alone


class ChatSettings(Settings):
    """How tools are shown and called."""

    format: str = "auto"
    """A tool-call format by name. `auto`: the one the model's own template speaks of; where it speaks of none, and for
    a tiny model, `hermes`, whose tools stand in the system message."""
    variables: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What the model's own chat template is given besides, by name: `{enable_thinking: false}`. One that it never reads
    is an error."""


class TasksSettings(BaseModel):
    """A source of tasks; every other key is an option of that source."""

    model_config = ConfigDict(extra="allow", frozen=True)

    source: str
    """A source by name, such as `arithmetic`, `jsonl`; or `package.module:name`."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the source's name."""
        return dict(self.model_extra or {})


class EnvironmentSettings(BaseModel):
    """An environment and what an episode in it may use; every other key is an option of that environment."""

    model_config = ConfigDict(extra="allow", frozen=True)
    CHANGES: ClassVar = changeable(none="effects allow_effects", sampling="timeout_seconds turn_timeout_seconds")

    name: str = "tools"
    """An environment by name, such as `tools`, `frozen_lake`; or `package.module:Class`."""
    max_turns: int = Field(8, ge=1)
    """Of an episode, which then ends truncated."""
    timeout_seconds: float = Field(300.0, gt=0)
    """From reset to end of an episode, waiting included."""
    turn_timeout_seconds: Seconds | Literal["auto", "none"] = "auto"
    """Deadline of one action and the answer to it, waiting included. `auto`: 20 times the 95th percentile of measured
    turns, at least 60 seconds, once 64 turns are measured. `none`: the deadline of the episode only."""
    fault_injection: NoiseSettings | None = None
    """Random failures, stale results and delays of actions; null injects none."""
    effects: dict[str, Literal["read", "write", "destructive"]] | None = None
    """Effects of tools outside of the episode, by tool; instead of those that the tools declare."""
    allow_effects: bool | list[str] | None = None
    """Permission for real calls of tools with the effects `write` and `destructive`: true for all, or their names."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything the environment itself is given."""
        return dict(self.model_extra or {})


class ModelSettings(Settings):
    """A model that is asked and never trained: one of `path`, `url` and `function` says which."""

    CHANGES: ClassVar = changeable(none="url api_key_env price")

    path: str | None = None
    """A run, whose last checkpoint speaks as the run's recipe says; or a folder, named as `policy.path` is."""
    url: str | None = None
    """Base URL of an OpenAI-compatible API, such as `http://localhost:8000/v1`."""
    function: str | None = None
    """`package.module:function` of (conversation, tools, seed) → a message or a text, plain or async: a script, or a
    client of one's own."""
    model: str = ""
    """Its name at `url`."""
    api_key_env: str = ""
    """Environment variable with the API key for `url`."""
    price: float = Field(0.0, ge=0)
    """Of one question, in the unit of `cost`."""
    seconds: float | None = Field(None, ge=0)
    """How long it takes, as the policy is told."""
    skill: str = ""
    """What it is good at, as the policy is told."""
    temperature: float = Field(0.0, ge=0)
    """How its answers are drawn; 0: the likeliest."""
    max_new_tokens: int = Field(256, ge=1)
    """The most of one answer."""

    @model_validator(mode="after")
    def _is_one(self) -> ModelSettings:
        given = [key for key in ("path", "url", "function") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(f"a model is one of path, url and function, got {' and '.join(given) or 'none'}")
        if self.url is None and (self.model or self.api_key_env):
            raise ValueError("model and api_key_env require url")
        return self


class NoiseSettings(Settings):
    """Fault injection: random failures, stale results and delays of actions, seeded by the episode's seed."""

    error_rate: float = Field(0.0, ge=0, lt=1)
    """Probability that an action fails and is not executed."""
    stale_rate: float = Field(0.0, ge=0, lt=1)
    """Probability that the result of the previous action is returned."""
    delay_seconds: float = Field(0.0, ge=0)
    """The median of how long an action takes besides."""
    delay_sigma: float = Field(1.0, ge=0)
    """Of the delays' log-normal distribution."""


class RolloutSettings(Settings):
    """How a task's trajectories are sampled for reinforcement."""

    CHANGES: ClassVar = changeable(
        none="max_in_flight",
        sampling=(
            "group_size temperature top_k top_p min_p stop_strings max_new_tokens on_context_overflow "
            "group_timeout_seconds reward_timeout_seconds"
        ),
    )

    strategy: Annotated[Part, named("independent")] = Part(name="independent")
    """Sampling strategy for the trajectories of a task: `independent`, `random_branching`, `entropy_branching`, …"""
    budget_allocation: Annotated[Part | None, named()] = None
    """Group size and turn limit of each group, such as `horizon_stages`; null: the same for every group."""
    start_states: Annotated[Part | None, named()] = None
    """States from which episodes start, such as `expert_prefix`; null: the initial state of the task."""
    context_transforms: Annotated[list[Annotated[Part, named()]], listed()] = []
    """What the policy reads beside what the environment says, such as `demonstrations`, `budget_line`."""
    on_context_overflow: Literal["drop", "refuse"] = "drop"
    """What becomes of what a view shows where it does not fit into the context."""
    early_stopping: Annotated[list[Annotated[Part, named()]], listed()] = []
    """Conditions that end an episode early, such as `void_turn`."""
    context_rewrites: Annotated[list[Annotated[Part, named()]], listed()] = []
    """Rewrites of the conversation history between turns, such as `summary`, `rollback`."""
    environment_wrapper: Annotated[Part | None, named()] = None
    """Who answers in the environment's place, such as `try_again`."""
    replay: Annotated[list[Annotated[Part, named()]], listed()] = []
    """What stored trajectories groups are given, such as `success_replay`."""
    trajectory_filters: Annotated[list[Annotated[Part, named()]], listed()] = []
    """Which trajectories of a step are learned from, such as `resample_on_correct`."""
    dynamic_sampling: Annotated[Part | None, named()] = None
    """Which groups count, such as `nonzero_variance`; others are sampled in the place of the rest."""
    group_size: int = Field(8, ge=1)
    """Trajectories of one task. One alone teaches something only where credit compares it with nothing of its task."""
    temperature: float = Field(1.0, gt=0)
    """Of the draws in training: what logits are divided by."""
    top_k: int = Field(0, ge=0)
    """Only the likeliest so many tokens are drawn; 0: all. With this, `top_p` or `min_p` the log-probs on record are
    those of the model before the cut, which are the learner's; they are known at `temperature` 1, which training asks
    for then. Evaluations are sampled so, too, where they are not greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Only the likeliest, until together they have this probability."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Only those at least this share of the likeliest one's probability."""
    stop_strings: list[str] = []
    """Strings that end a turn when they are generated, in addition to the stop strings of the chat format."""
    max_new_tokens: int = Field(256, ge=1)
    """In one turn."""
    max_in_flight: int = Field(256, ge=1)
    """Episodes running at once."""
    group_timeout_seconds: Seconds | Literal["auto", "none"] = "auto"
    """Deadline from a group's first episode to its last; episodes that are not finished then end by `timeout` with the
    turns that they have. `auto`: 10 times the 95th percentile of measured groups, at least 5 minutes, once 16 groups
    are measured. `none`: no deadline."""
    reward_timeout_seconds: float = Field(600.0, gt=0)
    """Of judging one episode, or one group by a reward that compares; then there is no score."""


class AggregationSettings(Settings):
    """Weight of the loss of a token in an update."""

    CHANGES: ClassVar = changeable(update="mode tokens")

    mode: Literal["token_mean", "sequence_sum", "sequence_mean", "constant"] = "token_mean"
    """Every token the same; every token the same however many there are; every sequence the same; or divided by a
    constant."""
    tokens: int | None = Field(None, ge=1)
    """That constant: the budget of an episode."""


class TeacherSettings(Settings):
    """A model whose log-probs of what the policy said are learned from."""

    CHANGES: ClassVar = changeable(none="device offload")

    path: str | None = None
    """Frozen teacher model with the policy's tokenizer, named like `policy.path`; can be a checkpoint. Null: the policy
    with its weights before each step's updates; requires `privileged_context`."""
    privileged_context: str | None = None
    """Text inserted before the task that only the teacher reads: a private column of tasks, such as `solution`, or
    `package.module:function` of (task, trajectory) → text or None; null inserts none."""
    device: str | None = None
    """What the teacher is computed on, as of `policy.device`; null: what the policy is."""
    offload: bool = False
    """Whether the teacher is kept on the CPU and brought to its device for each pass, which takes longer."""


class EvaluationSettings(Settings):
    """Success on held-out tasks, before and after each stage."""

    CHANGES: ClassVar = changeable(evaluation="interval_steps interval_episodes")

    episodes: int = Field(500, ge=1)
    """Held-out tasks; fewer where the source has fewer."""
    samples: int = Field(1, ge=1)
    """Episodes of each task; more than one gives pass@k."""
    temperature: float = Field(0.0, ge=0)
    """Of the draws; 0 takes the likeliest token each time."""
    strategy: Annotated[Part | None, named()] = None
    """How an answer comes of several tries, such as `best_of`, `majority_vote`, `tree_search`; null: each stands for
    itself."""
    interval_steps: int | None = Field(None, ge=1)
    """Also evaluate beside reinforcement, each time so many updates are made; null: only before and after stages."""
    interval_episodes: int = Field(100, ge=1)
    """Held-out tasks of those evaluations."""
    validation_episodes: int = Field(200, ge=1)
    """Number of validation tasks of `reinforcement.keep: best`: the held-out tasks of the source that follow the test
    tasks, the first `episodes`."""


_PRETRAINED_RATE, _ADAPTERS_RATE = 1e-6, 1e-5
"""Of reinforcement, as in verl and TRL; adapters bear ten times the rate of all weights."""
_IMITATION = 10
"""Imitation bears as many times the rate."""
_TINY_MUON_RATE, _TINY_RATE, _TINY_DECAY, _TINY_GROUPS = 1e-3, 3e-4, 0.9, 32
"""Defaults of reinforcement for a tiny policy after a supervised stage: learning rate with Muon, learning rate with
AdamW, fraction of the decay, and the groups per update from which the learning rate is not reduced."""
DEFAULT_ADVANTAGE = Part(name="group_relative")
MEMORY_NEW = "new"
"""Value of `init_state_from` for components that start without state."""
STAGE_KINDS = (
    "pretraining", "sampling", "supervised", "preference", "offline", "reward_model",
    "distillation",     "reinforcement",
)  # fmt: skip
"""In the order in which a run goes through them that has several."""
SAMPLES = ("sampling", "distillation", "reinforcement")
"""Those that sample episodes."""


def _gentle(supervised: SupervisedSettings, reinforcement: ReinforcementSettings) -> dict[str, Any]:
    """Return defaults of reinforcement that do not undo the supervised stage of a tiny policy.

    Adam and Muon normalize the gradient, so a step has its full length even if the gradient is mostly noise. The rate
    therefore shrinks with the groups of an update below `_TINY_GROUPS`.
    """
    is_set = "optimizer" in reinforcement.model_fields_set
    optimizer = reinforcement.optimizer if is_set else supervised.optimizer
    rate = _TINY_MUON_RATE if optimizer.startswith("muon") else _TINY_RATE
    groups = reinforcement.tasks_per_step / reinforcement.minibatches
    return {
        "optimizer": optimizer,
        "learning_rate": rate * min(1.0, groups / _TINY_GROUPS),
        "decay_fraction": _TINY_DECAY,
    }


class Recipe(Settings):
    """A run, whole. Functions and classes may stand where a file has their names.

    Raises:
        RecipeError: An unknown key, one missing, or one of the wrong type; in one line.
    """

    CHANGES: ClassVar = changeable(
        none="title paper trackers scale ablations store_code",
        update=(
            "advantage reward_shaping advantage_transforms credit_filters objective loss_terms aggregation "
            "importance_correction"
        ),
        sampling="engine",
    )

    def __init__(self, **keys: Any) -> None:
        try:
            super().__init__(**with_names(keys))
        except ValidationError as error:
            raise problem_of(error, Recipe, keys) from None

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
        """Give those keys of a stage that are not set other defaults; they stay unset, so they follow later changes."""
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
        """By kind, the stages that stand in the recipe itself, in the order in which they are gone through."""
        found = {kind: getattr(self, kind) for kind in STAGE_KINDS}
        return {kind: settings for kind, settings in found.items() if settings is not None}

    title: str = ""
    """What the run is about, in a few words; it stands on reports."""
    paper: str = ""
    """What it follows, such as `arXiv:2402.03300`."""
    seed: int = Field(0, ge=0, lt=2**63)
    """All chance comes from it; another one is another run of the same experiment."""
    policy: PolicySettings
    """Which model is trained; with `policies`, the first of them."""
    policies: dict[str, MemberSettings] = {}
    """Several models by name, each with the keys of `policy`; `policy` is the short form for one, and its keys override
    those of the first. The first is evaluated. The others play the seats that have their names, or those that
    `rollout.strategy.members` specifies. See `docs/members.md`."""
    chat: ChatSettings = ChatSettings()
    """How messages and calls become text."""
    tasks: TasksSettings
    """Where tasks come from."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """Where episodes are played, and with which tools."""
    models: dict[str, ModelSettings] = {}
    """Frozen models by name: tools of the policy (`environment.tools: [models]`), or those a planner plans for."""
    curriculum: Annotated[Part | None, named()] = None
    """Which task comes next, such as `ucb`, `stages`; null: in the source's order."""
    reward: Annotated[Part, named()]
    """What an episode is worth, such as `exact_number`; or `package.module:function`."""
    rollout: RolloutSettings = RolloutSettings()
    """How episodes are sampled for training."""
    engine: Annotated[Part, named("local")] = Part(name="local")
    """What samples: `local`, in this process; `vllm` or `sglang`, a server; or `package.module:Class`."""
    learner: Annotated[Part, named("local")] = Part(name="local")
    """What learns: `local`, in this process; or `package.module:Class`."""
    scale: Annotated[ScaleSettings, backend_alone()] = ScaleSettings()
    """Where all of this runs: in this process, in parts that Ray places (`local-ray`, `ray`; see `docs/ray.md`), or
    with several processes that learn (`docs/scaling-learners.md`). It decides no result of a run that is a function of
    its recipe, and a run may go on with another."""
    supervised: SupervisedSettings | None = None
    """The warm-up; null leaves it out."""
    reinforcement: ReinforcementSettings | None = None
    """Reinforcement; null leaves it out."""
    pretraining: PretrainingSettings | None = None
    """Plain text before all else; null leaves it out."""
    sampling: SamplingSettings | None = None
    """Episodes for a stage behind it, nothing learned; null leaves it out."""
    preference: PreferenceSettings | None = None
    """Pairs of answers, behind the warm-up; null leaves it out."""
    offline: OfflineSettings | None = None
    """Stored episodes, in front of reinforcement; null leaves it out."""
    reward_model: RewardModelSettings | None = None
    """A scorer, for reinforcement behind it; null leaves it out."""
    distillation: DistillationSettings | None = None
    """What `teacher` makes of the policy's own episodes; null leaves it out."""
    start_from: Annotated[StartSettings | None, start_alone()] = None
    """Checkpoint of another run from which this run starts instead of `policy.path` or `policy.tiny`, such as
    `runs/shop@50`; see `docs/continuing.md`."""
    init_state_from: Annotated[list[str], several()] = []
    """Runs or checkpoints from which stateful components (lessons, replay buffers, a curriculum) load their initial
    state, if this recipe has the same component with the same options; later entries take precedence. By default,
    each of `stages` loads the state of the stages before it; `new` starts without state."""
    live: LiveSettings | None = None
    """How a policy learns while it is served, by `whetstone live`; no stage of a run. See `docs/agents.md`."""
    stages: list[dict[str, Any]] = []
    """Instead of these, stages in any number and order: each a mapping of one of them, and whatever other keys of
    the recipe are different in it. What the recipe itself says of a kind is what all stages of that kind have in
    common. See `docs/stages.md`."""
    repeat_stages: int = Field(1, ge=1)
    """Number of passes over all of `stages`; each pass continues from the result of the previous one."""
    advantage: Annotated[Part, named("group_relative")] = DEFAULT_ADVANTAGE
    """How much better than expected each token, turn or episode was, such as `group_relative`, `token_gae`."""
    reward_shaping: Annotated[list[Annotated[Part, named()]], listed()] = []
    """Transformations of the rewards before advantages are computed, such as `overlong`, `gated`, `kl_penalty`."""
    advantage_transforms: Annotated[list[Annotated[Part, named()]], listed()] = []
    """What is done to advantages behind the estimator, such as `entropy_modulated`, `clip_cov`; in this order."""
    credit_filters: Annotated[list[Annotated[Part, named()]], listed()] = []
    """Turns that are not trained, such as `void_turns`; each filter defines whether they count in statistics."""
    custom_columns: Annotated[list[Annotated[Part, named()]], listed()] = []
    """User-defined columns, `package.module:name` each, that estimators and objectives read by name; see
    `docs/methods.md`."""
    role_tag: str | None = None
    """Task tag with the role of an episode, for estimators that compare episodes of the same role. Self-play does not
    need the tag: each seat is a role."""
    objective: Annotated[Part, named("clipped")] = Part(name="clipped")
    """The loss, such as `clipped`, `gspo`."""
    loss_terms: Annotated[list[Annotated[LossTermPart, named()]], listed()] = []
    """Terms that are added to the objective, such as `{name: entropy, weight: 0.001}` or `{name: "my_losses:brevity",
    weight: 0.01, over: sampled}`; see `docs/own-method.md`."""
    aggregation: Annotated[AggregationSettings, mode_alone()] = AggregationSettings()
    """Weight of the loss of a token."""
    importance_correction: Annotated[Part | None, named()] = None
    """Importance weights of off-policy tokens, such as `masked`, `truncated`; null weighs all tokens equally."""
    critic: CriticSettings | None = None
    """Critics, where `advantage` asks for values."""
    teacher: TeacherSettings | None = None
    """A model to distil from, where `objective` asks for it."""
    implicit_prm: ProcessModelSettings | None = None
    """Implicit process reward model, for estimators that read implicit rewards of turns."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """How success is measured on held-out tasks."""
    trackers: Annotated[list[Annotated[Part, named()]], listed()] = []
    """Trackers that receive the metrics of the run: `tensorboard`, `wandb`, `mlflow`, `trackio`, or
    `package.module:Class`; see `docs/trackers.md`. They do not affect results; a resumed run can have others."""
    store_code: bool = False
    """Copy the custom code of the recipe (rewards, tools, estimators, environments, and their imports from the
    same folder) into the run directory, as `code/`. Files with secrets are left out. Digests are always stored."""
    ablations: dict[str, dict[str, Any]] = {}
    """By name, the keys that differ; each is trained and evaluated after the run, and shown in its report."""
