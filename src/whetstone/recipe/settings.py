"""What can a recipe say? Every key, its type, its default and its bounds, declared once.

The file, the command line and Python read the same fields; an unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from whetstone.plugins import with_names
from whetstone.recipe.problems import problem_of


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Part(BaseModel):
    """A part by name, and its options; a name alone is enough in a recipe."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    """A built-in's short name, or `package.module:name`."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


def _named(default: str | None = None) -> BeforeValidator:
    """A name alone is a part; options alone are options of the default."""

    def read(given: Any) -> Any:
        if isinstance(given, str):
            return {"name": given}
        return {"name": default, **given} if isinstance(given, Mapping) and default is not None else given

    return BeforeValidator(read)


def _listed() -> BeforeValidator:
    """One alone is a list of one."""
    return BeforeValidator(lambda given: [given] if isinstance(given, str | Mapping) else given)


def _mode() -> BeforeValidator:
    """A mode alone is enough."""
    return BeforeValidator(lambda given: {"mode": given} if isinstance(given, str) else given)


class TinySettings(_Settings):
    """A small Llama built from nothing."""

    vocabulary: int = Field(384, ge=270)
    hidden: int = Field(128, ge=8)
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    intermediate: int = Field(384, ge=8)
    context_length: int = Field(512, ge=16)


class LoraSettings(_Settings):
    """Low-rank adapters, by PEFT."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    """What the adapter's output is multiplied by, over the rank."""
    targets: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the layers that get one: `[q_proj, v_proj]`; `all-linear`: all but the output layer."""
    dora: bool = False
    """Direction and size apart, as in DoRA."""


class PolicySettings(_Settings):
    """Which model: a folder, or a tiny one built from nothing."""

    path: str | None = None
    """A Hugging Face folder; a model of `whetstone models`, such as `smollm2-135m`; or a name on the Hugging Face hub,
    such as `Qwen/Qwen3-0.6B`, which is fetched, or `Qwen/Qwen3-0.6B@revision`, as wherever a recipe names a model."""
    revision: str | None = None
    """Branch, tag or commit of one of the hub's; null: its main branch. A run writes down the commit it had."""
    trust_remote_code: bool = False
    """Whether code that comes with the models of this recipe is run: the policy's, its checkpoints', the teacher's and
    those of other seats. Judges and reward models have an option of their own."""
    tiny: TinySettings | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """What the model is computed in, sampled and learned alike. Weights that are trained are held in float32 all the
    same, those that adapters stand beside in this. `auto`: bfloat16 for a model of 20 million parameters or more where
    the device is quick at it, else float32 (on a GPU without bfloat16: float16)."""
    device: str = "auto"
    """What the policy is computed on, sampled and learned alike: `cpu`, `cuda`, `cuda:1`, `mps`, or another device of
    PyTorch's. `auto`: the first GPU of CUDA or ROCm where there is one, else the CPU. Apple's `mps` has to be named:
    nobody has measured that it is quicker."""
    lora: LoraSettings | None = None
    """Train adapters beside the weights instead of the weights; null trains the weights."""
    frozen: list[str] = []
    """Names of parameters that are not trained, `*` for any letters: `model.embed_tokens.*`."""


class ChatSettings(_Settings):
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

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the source's name."""
        return dict(self.model_extra or {})


class EnvironmentSettings(BaseModel):
    """An environment and what an episode in it may use; every other key is an option of that environment."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "tools"
    max_turns: int = Field(8, ge=1)
    timeout_seconds: float = Field(300.0, gt=0)
    """From reset to end of an episode, waiting included."""
    turn_timeout_seconds: float | None = Field(None, gt=0)
    """One action and the answer to it, waiting included; null: as long as the episode may take."""
    noise: NoiseSettings | None = None
    """Tools that are slow, fail or answer out of date; null: none of it."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything the environment itself is given."""
        return dict(self.model_extra or {})


class NoiseSettings(_Settings):
    """What goes wrong with tools, by chance that comes from the episode's seed."""

    errors: float = Field(0.0, ge=0, lt=1)
    """The probability that an action fails and is not carried out."""
    outdated: float = Field(0.0, ge=0, lt=1)
    """The probability that the answer is the one of before."""
    delay_seconds: float = Field(0.0, ge=0)
    """The median of how long an action takes besides."""
    delay_sigma: float = Field(1.0, ge=0)
    """Of the delays' log-normal distribution."""


class RolloutSettings(_Settings):
    """How a task's trajectories are sampled for reinforcement."""

    strategy: Annotated[Part, _named("independent")] = Part(name="independent")
    """How the trajectories of a task come about: `independent`, `forked`, `entropy_branching`, …"""
    allocate: Annotated[Part | None, _named()] = None
    """How much a group may use, such as `horizon_stages`; null: all the same."""
    start: Annotated[Part | None, _named()] = None
    """Where episodes begin, such as `expert_prefix`; null: at the beginning."""
    context_transforms: Annotated[list[Annotated[Part, _named()]], _listed()] = []
    """What the policy reads beside what the environment says, such as `demonstrations`, `budget_line`."""
    on_context_overflow: Literal["drop", "refuse"] = "drop"
    """What becomes of what a view shows where it does not fit into the context."""
    stops: Annotated[list[Annotated[Part, _named()]], _listed()] = []
    """What ends an episode early, such as `void_turn`."""
    rewrites: Annotated[list[Annotated[Part, _named()]], _listed()] = []
    """What becomes of what was said so far, such as `summary`, `rollback`."""
    environment_wrapper: Annotated[Part | None, _named()] = None
    """Who answers in the environment's place, such as `try_again`."""
    replay: Annotated[list[Annotated[Part, _named()]], _listed()] = []
    """What stored trajectories groups are given, such as `success_replay`."""
    trajectory_filters: Annotated[list[Annotated[Part, _named()]], _listed()] = []
    """Which trajectories of a step are learned from, such as `resample_on_correct`."""
    dynamic_sampling: Annotated[Part | None, _named()] = None
    """Which groups count, such as `informative`; others are sampled in the place of the rest."""
    group_size: int = Field(8, ge=1)
    """Trajectories of one task. One alone teaches something only where credit compares it with nothing of its task."""
    temperature: float = Field(1.0, gt=0)
    top_k: int = Field(0, ge=0)
    """Only the likeliest so many tokens are drawn; 0: all. With this, `top_p` or `min_p` the log-probs on record are
    those of the model before the cut, which are the learner's; they are known at `temperature` 1, which training asks
    for then. Evaluations are sampled so, too, where they are not greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Only the likeliest, until together they have this probability."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Only those at least this share of the likeliest one's probability."""
    stop: list[str] = []
    """Texts behind which a turn is over, beside those of the chat format."""
    max_new_tokens: int = Field(256, ge=1)
    """In one turn."""
    max_in_flight: int = Field(256, ge=1)
    """Episodes running at once."""
    group_timeout_seconds: float | None = Field(None, gt=0)
    """From a group's first episode to its last; then those under way end by `timeout`, with the turns they have."""
    reward_timeout_seconds: float = Field(600.0, gt=0)
    """Of judging one episode, or one group by a reward that compares; then there is no score."""


class OptimizerSettings(_Settings):
    """What both stages share."""

    steps: int = Field(100, ge=1)
    optimizer: Literal["adamw", "muon", "adamw_8bit"] = "adamw"
    """`muon`: Muon for the matrices inside the model, AdamW for the rest. `adamw_8bit`: states in eight bits (GPU)."""
    learning_rate: float = Field(1e-3, gt=0)
    """Unless it is set, what suits the policy: of a tiny one 1e-3; of a pretrained one 1e-6 (1e-5 with adapters) in
    reinforcement, ten times that in the warm-up."""
    warmup_fraction: float = Field(0.05, ge=0, le=1)
    """The share of the stage's steps, at its start, in which the learning rate rises from 0."""
    decay_fraction: float = Field(0.0, ge=0, le=1)
    """The share of them, at its end, in which it falls to 0: none of them is the constant schedule, all that
    the warm-up leaves the cosine or linear one, some of them warm-up-stable-decay."""
    decay: Literal["linear", "cosine"] = "linear"
    weight_decay: float = Field(0.0, ge=0)
    """Of matrices; gains and biases are left alone."""
    max_gradient_norm: float = Field(1.0, gt=0)
    micro_batch_tokens: int = Field(8192, ge=1)
    """Tokens computed in one forward pass; does not change results. A longer segment has a pass of its own."""
    share_prefixes: bool = True
    """Whether what segments begin with alike is computed once; does not change results."""
    logit_megabytes: int = Field(256, ge=1)
    """Logits kept for the backward pass; what is beyond is computed twice. Does not change results."""
    activation_checkpointing: bool = False
    """Whether each layer is computed again in the backward pass, which needs less memory and more time."""
    optimizer_offload: bool = False
    """Whether the optimiser computes on the CPU, with its states there and a copy of the weights: a GPU then holds
    8 bytes a trained parameter less, and 8 bytes a parameter go to and fro in each update."""
    max_nonfinite: int = Field(10, ge=1)
    """Updates in a row without a finite gradient, after which the run stops. None of them is applied."""
    checkpoint_every: int = Field(25, ge=1)
    keep_last: int = Field(2, ge=1)
    """Checkpoints kept, beside those at the ends of stages."""
    keep_every: int | None = Field(None, ge=1)
    """Checkpoints at multiples of so many steps are kept as well."""


class SupervisedSettings(OptimizerSettings):
    """The warm-up: imitate the source's expert."""

    batch_size: int = Field(32, ge=1)
    """Demonstrations a step; each is seen once."""
    tasks: dict[str, Any] = {}
    """Options of the task source that are different for demonstrations, such as an easier mix."""


class ReinforcementSettings(OptimizerSettings):
    """Reinforcement."""

    tasks_per_step: int = Field(16, ge=1)
    minibatches: int = Field(1, ge=1)
    """Updates made with the trajectories of one step, each with its share of the groups."""
    epochs: int = Field(1, ge=1)
    """How often each of these updates is made."""
    reference_kl: float = Field(0.0, ge=0)
    """Weight of the divergence from the policy reinforcement began with; 0 does without that policy."""
    admit_ahead: int = Field(0, ge=0)
    """Updates sampling may run ahead of learning; 0 samples and learns in turn."""
    max_staleness: int = Field(0, ge=0)
    """How many updates the oldest token of an update may lie back; at least `admit_ahead`. What is between the two
    lets quick groups go ahead of slow ones, which are waited for when they are due, and never dropped."""
    in_flight: Literal["drain", "continue", "recompute"] = "recompute"
    """What becomes of turns under way when weights change, where sampling runs ahead: they finish first (`drain`), go
    on over the keys of the old weights (`continue`: each token then is a mixture's), or go on after what they have is
    computed again (`recompute`: exact)."""
    deterministic: bool = False
    """Whether a group is sampled under one version alone, so that a run depends on its recipe and not on timing:
    weights change only when no group is under way. Without `admit_ahead` that is always so."""
    step_timeout_seconds: float | None = Field(None, gt=0)
    """How long an update waits for its groups; then it takes those that are finished, one or more."""
    reference_device: str | None = None
    """What the reference is computed on, as of `policy.device`; null: what the policy is."""
    reference_offload: bool = False
    """Whether the reference is kept on the CPU and brought to its device for each pass, which takes longer."""
    reference_estimator: Literal["k2", "k3", "k3_as_k2"] = "k2"
    """How the divergence is estimated: k2 has the gradient of the reverse divergence, k3 of the forward one;
    `k3_as_k2` reports the one and pulls like the other."""
    entropy: EntropySettings | None = None
    """A bonus for entropy; null leaves it out."""
    max_mismatch: float = Field(0.1, gt=0, allow_inf_nan=True)
    """How far sampler and learner may disagree on tokens of the present weights (`sampler/mismatch_kl`, the mean k3 of
    a step, in nats) before the run stops; from a tenth of it on it is said. `.inf`: any."""
    max_faults: int = Field(100, ge=0)
    """Failures of servers, sandboxes, rewards and our own among the last 1,000 episodes, above which the run stops."""
    imitation: ImitationSettings | None = None
    """Keep imitating the source's expert; null leaves it out."""
    budget: BudgetSettings | None = None
    """What may be spent; the stage ends with the update that reaches it. `steps` is the most it makes all the same;
    schedules are laid out over whichever ends it."""


class BudgetSettings(_Settings):
    """What reinforcement may spend, whatever became of it; null: any."""

    episodes: int | None = Field(None, ge=1)
    sampled_tokens: int | None = Field(None, ge=1)
    tool_calls: int | None = Field(None, ge=1)
    seconds: float | None = Field(None, gt=0)
    """Of steps, evaluations before and after not among them."""


class CriticSettings(_Settings):
    """Critics on the policy's states, for estimators that ask for values."""

    loss: Literal["squared", "success"] = "squared"
    """Half the squared error; or the cross-entropy of a probability of success, for estimators that want those."""
    weight: float = Field(0.5, gt=0)
    """Of their error beside the objective."""
    learning_rate: float = Field(1e-2, gt=0)
    """Of the critics' own AdamW, on the stage's schedule: they are a layer that starts at nothing."""
    clip: float | None = Field(None, gt=0)
    """How far a value may move from the old one before its error has no gradient, in units of return; null: any."""
    epochs: int = Field(1, ge=1)
    """How often critics learn from a step, the last time beside the policy; before it credit is given anew."""
    warm_up: int = Field(0, ge=0)
    """Updates in which the critics learn and the policy does not."""
    slow_rate: float = Field(0.1, gt=0, le=1)
    """How far slow copies follow their critic at each update, where an estimator asks for them."""
    detached: bool = True
    """Whether their error leaves the policy's own layers alone."""


class AggregationSettings(_Settings):
    """What a token's loss counts for in an update."""

    mode: Literal["token_mean", "sequence_sum", "sequence_mean", "constant"] = "token_mean"
    """Every token the same; every token the same however many there are; every sequence the same; or divided by a
    constant."""
    tokens: int | None = Field(None, ge=1)
    """That constant: the budget of an episode."""


class EntropySettings(_Settings):
    """A bonus for the entropy of next-token distributions."""

    weight: float = Field(0.001, gt=0)
    band: float | None = Field(None, gt=0, lt=1)
    """How far from the usual entropy at the same turn tokens may be before the bonus weakens or turns: 0.2 for
    0.8 to 1.2 of it; null: no band."""
    strength: float = Field(2.0, gt=0)
    """Of the band; above 1 it pulls entropy down above the band."""
    phase: Literal["constant", "decay", "rise"] = "constant"
    """How the band's strength changes over the stage."""


class ImitationSettings(_Settings):
    """Demonstrations beside the policy's own episodes, in the same updates."""

    weight: float = Field(0.1, gt=0)
    batch_size: int = Field(8, ge=1)
    """Demonstrations a step."""
    final_weight: float | None = Field(None, ge=0)
    """Where the weight ends up, in half a cosine; null: it stays."""
    decay_steps: int = Field(350, ge=1)
    """Steps until it is there."""
    mixed: bool = False
    """Whether the objective counts for one minus the weight."""


class TeacherSettings(_Settings):
    """A frozen model whose log-probs are learned from."""

    path: str
    """A model with the policy's own tokenizer, named as `policy.path` is; a checkpoint is one."""
    device: str | None = None
    """What the teacher is computed on, as of `policy.device`; null: what the policy is."""
    offload: bool = False
    """Whether the teacher is kept on the CPU and brought to its device for each pass, which takes longer."""


class ProcessModelSettings(_Settings):
    """A second model that learns, from which episodes succeeded, which turns were good; begins as the policy."""

    learning_rate: float = Field(1e-4, gt=0)
    beta: float = Field(0.05, gt=0)
    """What its log-ratios are multiplied by."""
    pool: Literal["mean", "sum"] = "mean"
    """Whether an episode's score is the mean or the sum over its turns."""


class EvaluationSettings(_Settings):
    """Success on held-out tasks, before and after each stage."""

    episodes: int = Field(500, ge=1)
    """Held-out tasks; fewer where the source has fewer."""
    samples: int = Field(1, ge=1)
    """Episodes of each task; more than one gives pass@k."""
    temperature: float = Field(0.0, ge=0)
    strategy: Annotated[Part | None, _named()] = None
    """How an answer comes of several tries, such as `best_of`, `majority_vote`, `tree_search`; null: each stands for
    itself."""
    interval_steps: int | None = Field(None, ge=1)
    """Also evaluate beside reinforcement, each time so many updates are made; null: only before and after stages."""
    interval_episodes: int = Field(100, ge=1)
    """Held-out tasks of those evaluations."""


_PRETRAINED_RATE, _ADAPTERS_RATE = 1e-6, 1e-5
"""Of reinforcement, as in verl and TRL; adapters bear ten times the rate of all weights."""
_IMITATION = 10
"""Imitation bears as many times the rate."""
DEFAULT_ADVANTAGE = Part(name="group_relative")


class Recipe(_Settings):
    """A run, whole. Functions and classes may stand where a file has their names.

    Raises:
        RecipeError: An unknown key, one missing, or one of the wrong type; in one line.
    """

    def __init__(self, **keys: Any) -> None:
        try:
            super().__init__(**with_names(keys))
        except ValidationError as error:
            raise problem_of(error, Recipe) from None

    @model_validator(mode="after")
    def _rates_suit_the_policy(self) -> Recipe:
        if self.policy.path is None:
            return self
        rate = _PRETRAINED_RATE if self.policy.lora is None else _ADAPTERS_RATE
        for key, suits in (("reinforcement", rate), ("supervised", _IMITATION * rate)):
            stage = getattr(self, key)
            if stage is not None and "learning_rate" not in stage.model_fields_set:
                suited = stage.model_copy(update={"learning_rate": suits})
                suited.model_fields_set.discard("learning_rate")  # it goes on being what suits, whatever changes
                self.__dict__[key] = suited
        return self

    title: str = ""
    paper: str = ""
    seed: int = Field(0, ge=0, lt=2**63)
    policy: PolicySettings
    chat: ChatSettings = ChatSettings()
    tasks: TasksSettings
    environment: EnvironmentSettings = EnvironmentSettings()
    curriculum: Annotated[Part | None, _named()] = None
    """Which task comes next, such as `ucb`, `stages`; null: in the source's order."""
    reward: Annotated[Part, _named()]
    rollout: RolloutSettings = RolloutSettings()
    engine: Annotated[Part, _named("local")] = Part(name="local")
    """What samples: `local`, in this process; `vllm` or `sglang`, a server; or `package.module:Class`."""
    learner: Annotated[Part, _named("local")] = Part(name="local")
    """What learns: `local`, in this process; or `package.module:Class`."""
    supervised: SupervisedSettings | None = None
    """The warm-up; null leaves it out."""
    reinforcement: ReinforcementSettings | None = None
    """Reinforcement; null leaves it out."""
    advantage: Annotated[Part, _named("group_relative")] = DEFAULT_ADVANTAGE
    shaping: Annotated[list[Annotated[Part, _named()]], _listed()] = []
    """What is done to rewards before credit, such as `overlong`, `gated`, `kl_penalty`."""
    advantage_transforms: Annotated[list[Annotated[Part, _named()]], _listed()] = []
    """What is done to advantages behind the estimator, such as `entropy_modulated`, `clip_cov`; in this order."""
    credit_filters: Annotated[list[Annotated[Part, _named()]], _listed()] = []
    """What is not learned from, such as `void_turns`; each says whether it still counts in statistics."""
    columns: Annotated[list[Annotated[Part, _named()]], _listed()] = []
    """Columns of yours that credit or objective reads by name, `package.module:name` each; see `docs/methods.md`."""
    roles: str | None = None
    """The task tag that names the role an episode is played in, for estimators that compare within a role; a seat of
    self-play is a role without it."""
    objective: Annotated[Part, _named("clipped")] = Part(name="clipped")
    aggregation: Annotated[AggregationSettings, _mode()] = AggregationSettings()
    correction: Annotated[Part | None, _named()] = None
    """What tokens count for that an older policy drew: `masked`, `truncated`; null counts all alike."""
    critic: CriticSettings | None = None
    """Critics, where `advantage` asks for values."""
    teacher: TeacherSettings | None = None
    """A model to distil from, where `objective` asks for it."""
    process_model: ProcessModelSettings | None = None
    """A model of turns, where `advantage` asks for implicit rewards."""
    evaluation: EvaluationSettings = EvaluationSettings()
    ablations: dict[str, dict[str, Any]] = {}
    """By name, the keys that differ; each is trained and evaluated after the run itself, and reported beside it."""
