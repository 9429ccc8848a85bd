"""What can a recipe say of a stage? Its optimiser, what it learns from, how long it goes on."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from whetstone.recipe.parts import Part, Seconds, Settings, changeable, named


def _data() -> BeforeValidator:
    """A path alone is enough."""
    return BeforeValidator(lambda given: {"path": given} if isinstance(given, str) else given)


def several() -> BeforeValidator:
    """One alone is a list of one."""
    return BeforeValidator(lambda given: given if isinstance(given, list | tuple) else [given])


class UntilSettings(Settings):
    """What ends a stage before its `steps` are made; decided from the steps on record."""

    success: float | None = Field(None, gt=0, le=1)
    """The share of episodes that solve their task, in the mean over `window` steps; of stages that sample."""
    plateau: int | None = Field(None, ge=1)
    """So many steps in which the mean over `window` steps is no better than it was before."""
    monitor: Literal["reward", "loss"] | None = None
    """Metric of `plateau`; null: the reward if the stage samples episodes, otherwise the loss."""
    min_delta: float = Field(0.01, ge=0)
    """Smallest change of the metric that counts as an improvement."""
    window: int = Field(10, ge=1)
    """Steps a mean is over."""


class OptimizerSettings(Settings):
    """What all stages share."""

    CHANGES: ClassVar = changeable(
        none="optimizer_offload checkpoint_interval_steps keep_last keep_interval_steps",
        schedule="steps until warmup_fraction decay_fraction decay",
        update=(
            "learning_rate max_grad_norm max_nonfinite_updates micro_batch_tokens prefix_sharing "
            "logits_memory_mb activation_checkpointing"
        ),
    )

    steps: int = Field(100, ge=1)
    """Steps of the stage; schedules are laid out over them."""
    until: UntilSettings | None = None
    """What ends the stage earlier; null: its steps alone. What is laid out over the stage is laid out over `steps` all
    the same."""
    optimizer: Literal["adamw", "muon", "muon_float32", "muon_bfloat16", "adamw_8bit"] = "adamw"
    """`muon`: Muon for the matrices inside the model, AdamW for the rest. Its Newton-Schulz iteration runs in the
    precision that is faster on the device, measured when the run starts; the run stores the choice as `muon_float32` or
    `muon_bfloat16`, which can also be set. Unless it is set, reinforcement of a tiny policy after a supervised stage
    has the optimizer of that stage. `adamw_8bit`: states in eight bits (GPU)."""
    learning_rate: float = Field(1e-3, gt=0)
    """Unless it is set, what suits the policy. Of a pretrained one 1e-6 (1e-5 with adapters) in reinforcement and ten
    times that in the warm-up. Of a tiny one 1e-3; in reinforcement after a supervised stage 1e-3 with Muon and 3e-4
    with AdamW, times min(1, groups per update / 32): small batches have noisy gradients and get small steps."""
    warmup_fraction: float = Field(0.05, ge=0, le=1)
    """The share of the stage's steps, at its start, in which the learning rate rises from 0."""
    decay_fraction: float = Field(0.0, ge=0, le=1)
    """The share of them, at its end, in which it falls to 0: none of them is the constant schedule, all that
    the warm-up leaves the cosine or linear one, some of them warm-up-stable-decay. Unless it is set,
    0.9 in reinforcement of a tiny policy after a supervised stage, otherwise 0."""
    decay: Literal["linear", "cosine"] = "linear"
    """Along which curve it falls."""
    weight_decay: float = Field(0.0, ge=0)
    """Of matrices; gains and biases are left alone."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Maximum gradient norm; longer gradients are scaled down to it."""
    micro_batch_tokens: int = Field(8192, ge=1)
    """Tokens computed in one forward pass; does not change results. A longer segment has a pass of its own."""
    prefix_sharing: bool = True
    """Whether the common prefix of segments in a micro-batch is computed once. Does not change results."""
    logits_memory_mb: int = Field(256, ge=1)
    """Memory for logits that are kept for the backward pass, in MB; logits beyond it are recomputed. Does not change
    results."""
    activation_checkpointing: bool = False
    """Whether each layer is computed again in the backward pass, which needs less memory and more time."""
    optimizer_offload: bool = False
    """Whether the optimiser computes on the CPU, with its states there and a copy of the weights: a GPU then holds
    8 bytes a trained parameter less, and 8 bytes a parameter go to and fro in each update."""
    max_nonfinite_updates: int = Field(10, ge=1)
    """Number of consecutive updates with a non-finite gradient after which the run stops. None of them is applied."""
    checkpoint_interval_steps: int = Field(25, ge=1)
    """Steps between two checkpoints; a killed run loses at most these steps."""
    keep_last: int = Field(2, ge=1)
    """Number of latest checkpoints to keep, in addition to those at the ends of stages."""
    keep_interval_steps: int | None = Field(None, ge=1)
    """Steps between checkpoints that are kept permanently; null keeps only the latest ones."""


class DataSettings(Settings):
    """Data of one's own, from a file; the path alone is enough."""

    path: str = ""
    """JSON lines, one JSON list (`.json`), Parquet (`.parquet`, or a folder of them), or a dataset of Hugging Face in a
    folder; `docs/data.md` has the columns of each kind. For stored episodes a run directory as well."""
    from_stage: str = ""
    """Earlier stage whose episodes are the data, instead of a path: the last stage of this kind or name, or `previous`
    for the last stage that sampled."""
    reward: str | list[str] | None = None
    """Column with the reward of the episode, or several columns that are summed, for rows with one episode each; null:
    `reward`, `score`, or the reward column of a known tool's log."""
    split: str = "train"
    """Split of a dataset with several splits."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """`stop` reports all invalid rows before training starts; `skip` excludes them, and the run stores their number."""
    train_on: str = "all"
    """Assistant turns that are trained: `all`, the `last`, those with `calls`, those that are `answers`, or
    `package.module:function` of (message, index among the assistant's messages, all messages)."""
    min_reward: float | None = None
    """Minimum reward of stored episodes; null keeps all."""
    top_k_per_task: int | None = Field(None, ge=1)
    """Maximum number of stored episodes per task, those with the highest reward; null keeps all."""
    relabel: str | None = None
    """Hindsight relabeling of stored episodes that did not solve their task: `package.module:function` of (trajectory)
    → text of the last user message of the opening for the task that was solved instead, or None; null relabels none."""
    max_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens that the policy wrote in a stored episode; null keeps all."""
    well_formed_only: bool = False
    """Keep only stored episodes that finished, with well-formed and answered calls and without loops."""
    deduplicate: bool = False
    """Keep one of several stored episodes of a task with the same messages and calls."""
    stitched: int = Field(0, ge=0)
    """Maximum number of stitched episodes per task: the start of one stored episode followed by the end of another,
    if both have the same context at the seam. Filters apply to them too."""
    balance_tasks: bool = False
    """Sample each task equally often, regardless of its number of stored episodes."""

    OF_EPISODES: ClassVar = (
        "reward",
        "min_reward",
        "top_k_per_task",
        "max_tokens",
        "well_formed_only",
        "deduplicate",
        "stitched",
        "balance_tasks",
        "relabel",
    )
    """Keys that apply only to stored episodes."""

    @property
    def chooses(self) -> tuple[str, ...]:
        """Return the keys that are set and apply only to stored episodes."""
        own = type(self).model_fields
        return tuple(name for name in self.OF_EPISODES if getattr(self, name) != own[name].default)


class SupervisedSettings(OptimizerSettings):
    """The warm-up: imitate the source's expert, or what stands in a file."""

    batch_size: int = Field(32, ge=1)
    """Demonstrations a step; each of the expert's is seen once, those of a file again when all were."""
    data: Annotated[DataSettings | None, _data()] = None
    """Conversations in the OpenAI shape, to imitate instead of the source's expert; or stored episodes of a run."""
    tasks: dict[str, Any] = {}
    """Options of the task source that are different for demonstrations, such as an easier mix."""


class SamplingSettings(OptimizerSettings):
    """Episodes of the policy as it is, for a stage behind it to learn from; nothing is learned in it."""

    CHANGES: ClassVar = changeable(none="max_failures", sampling="tasks_per_step")

    steps: int = Field(1, ge=1)
    """How often tasks are sampled."""
    tasks_per_step: int = Field(64, ge=1)
    """Groups of episodes a step."""
    max_failures: int = Field(100, ge=0)
    """Same as `reinforcement.max_failures`."""


class PretrainingSettings(OptimizerSettings):
    """Plain text, every token of it learned from."""

    data: Annotated[DataSettings, _data()]
    """Texts: rows with `text`, or a `.txt` file, whose texts are parted by empty lines."""
    batch_size: int = Field(16, ge=1)
    """Windows of text a step."""
    window: int = Field(512, ge=2)
    """Tokens in one; never more than the model's context."""


class PreferenceSettings(OptimizerSettings):
    """Pairs of a better and a worse answer, or single ones that were rated."""

    CHANGES: ClassVar = changeable(none="reference_device reference_offload")

    data: Annotated[DataSettings, _data()]
    """Rows with `chosen` and `rejected` (and `prompt`), or with `prompt`, `completion` and `label`; or stored episodes,
    a run's, or those of a log whose column of rewards `reward` names: the best and the worst of each task, token for
    token; for `kto` each by itself; for `step_dpo` all of them, turn by turn where they part."""
    batch_size: int = Field(16, ge=1)
    """Pairs, or rated singles, a step; again when all were."""
    objective: Annotated[Part, named("dpo")] = Part(name="dpo")
    """`dpo`, `ipo`, `simpo`, `orpo`, and `step_dpo`, which compares turns that went on from the same one; of rated
    singles `kto`."""
    reference_device: str | None = None
    """As of reinforcement."""
    reference_offload: bool = False
    """As of reinforcement."""


class SmoothnessSettings(Settings):
    """Consistency regularization: a penalty on differences between two forward passes, one with noisy embeddings."""

    noise: float = Field(0.05, gt=0)
    """Standard deviation of the noise, relative to the size of a token's embedding; the noise of a token id is the same
    everywhere in an update and differs between updates."""
    policy: float = Field(0.1, ge=0)
    """Weight of half the squared difference of log-probs."""
    value: float = Field(0.1, ge=0)
    """Weight of half the squared difference of values, added to the critics' loss; no effect without a critic."""


class OfflineSettings(OptimizerSettings):
    """Stored episodes, learned from by the recipe's `advantage` and `objective`; nothing is sampled."""

    CHANGES: ClassVar = changeable(
        none="reference_device reference_offload",
        update="reference_kl consistency_regularization",
        evaluation="held_out_interval_steps",
    )

    data: Annotated[DataSettings, _data()]
    """A run directory, or a file of trajectories as runs write them."""
    tasks_per_step: int = Field(16, ge=1)
    """Groups a step; again when all were."""
    reference_kl: float = Field(0.0, ge=0)
    """As of reinforcement."""
    reference_device: str | None = None
    """As of reinforcement."""
    reference_offload: bool = False
    """As of reinforcement."""
    consistency_regularization: SmoothnessSettings | None = None
    """Same as `reinforcement.consistency_regularization`."""
    held_out: float = Field(0.1, ge=0, lt=1)
    """The share of tasks whose episodes are never learned from: `whetstone why` compares the loss on them with that of
    training, and says whether to stop, regularise or get more data."""
    held_out_interval_steps: int = Field(5, ge=1)
    """Steps between evaluations of the loss on held-out tasks, each on `tasks_per_step` groups; the first and the last
    step are evaluated too."""


class StoredMixtureSettings(Settings):
    """Offline mixture: stored episodes that are mixed with the sampled ones of reinforcement."""

    data: Annotated[list[Annotated[DataSettings, _data()]], several()] = Field(min_length=1)
    """Run directory or file of trajectories as runs write them, or a list of them; each is a separate history."""
    fraction: float = Field(0.5, ge=0, lt=1)
    """Fraction of stored groups in an update: 0.5 adds as many stored groups as there are sampled ones
    (`tasks_per_step`); 0 reads no data and gives the same run as without the mixture."""
    mode: Literal["joint", "critic_only", "alternating"] = "joint"
    """Use of the stored groups: `joint`, in the same updates as sampled groups; `critic_only`, one-step TD targets for
    the critics, no policy loss (HNPG); `alternating`, in separate updates between those on sampled groups (MOORL)."""
    sampling: Literal["uniform", "reward", "recency", "improvement"] = "uniform"
    """Sampling distribution over stored groups: `uniform`, each group once per epoch; `reward`, `recency` or
    `improvement`, more often for a higher reward, a later position in the history, or a steadily improving history."""
    sampling_strength: float = Field(1.0, ge=0)
    """Coefficient of the sampling weights `exp(sampling_strength · preference)`, with a preference in [0, 1] (of
    `improvement` in [-1, 1]); 0 samples uniformly."""
    off_policy: Literal["stored", "recompute", "truncated"] | None = None
    """Denominator of the ratios of stored tokens: `stored`, the stored log-probs; `recompute`, the policy before the
    update, so that ratios start at 1; `truncated`, the same with weights by `importance_correction`. Null: `stored` if
    the data have log-probs, otherwise `recompute`."""
    critic_weight: float = Field(0.5, ge=0)
    """Weight of the critics' mean error on stored turns relative to sampled turns; requires `mode: critic_only`. 0
    gives the same run as without the mixture."""
    critic_discount: float = Field(1.0, ge=0, le=1)
    """Discount of the next value in one-step TD targets of stored turns; requires `mode: critic_only`."""
    simulation_weight: float = Field(0.0, ge=0)
    """Weight of the penalty that lowers values of sampled turns and raises those of stored turns if their dynamics
    differ (H2O), for a simulated environment with stored data of the real one; requires `mode: critic_only`. 0 disables
    the penalty."""
    inner_updates: int = Field(1, ge=1)
    """Updates on stored groups after each step's updates on sampled groups; requires `mode: alternating`."""
    outer_rate: float = Field(1.0, gt=0, le=1)
    """Interpolation factor from the old weights to the weights after a step's updates of one kind (1: no
    interpolation); requires `mode: alternating`."""


class GroupSourceSettings(Settings):
    """A source of groups that are mixed with the sampled ones of reinforcement."""

    source: Annotated[Part, named()]
    """`{name: stored, data: PATH}`, or `package.module:name` of a class with `async groups(first, count)`, which
    returns the same groups for the same positions."""
    fraction: float = Field(0.5, ge=0, lt=1)
    """Fraction of all groups of an update that come from the source; sampled groups have the rest."""
    timeout_seconds: Seconds | None = 60.0
    """Time that an update waits for the source; groups that are late join a later update. Null: no limit. With
    `deterministic` there is no limit."""


class RewardModelSettings(OptimizerSettings):
    """A scorer of episodes for a later `reinforcement` stage (`reward: {name: reward_model, stage: reward_model}`): a
    linear head over the states of a frozen model. The policy is not trained."""

    data: Annotated[DataSettings, _data()]
    """Pairs or rated singles, or stored episodes, whose rewards say which are better."""
    objective: Literal["pairs", "outcomes"] = "pairs"
    """What it is fitted by: which of two episodes is better (Bradley-Terry), or which succeeded (cross-entropy)."""
    path: str | None = None
    """Over whose states, a model as of `policy.path`; null: the policy's, as it is then."""
    held_out: float = Field(0.2, gt=0, lt=1)
    """The share of tasks that are kept to try it on."""
    steps: int = Field(200, ge=1)
    """Of fitting the line."""
    learning_rate: float = Field(0.05, gt=0)
    """Of fitting the line."""
    weight_decay: float = Field(1e-2, ge=0)
    """Of the line."""


class DistillationSettings(OptimizerSettings):
    """A student who samples, and a `teacher` who says of each of its tokens how likely it was; no reward is learned
    from."""

    CHANGES: ClassVar = changeable(
        none="max_mismatch_kl max_failures",
        update="minibatches objective",
        sampling="tasks_per_step",
    )

    tasks_per_step: int = Field(16, ge=1)
    """Groups of episodes a step."""
    minibatches: int = Field(1, ge=1)
    """As of reinforcement."""
    objective: Annotated[Part, named("importance_weighted_distillation")] = Part(
        name="importance_weighted_distillation"
    )
    """`importance_weighted_distillation`, `on_policy_distillation`, or another that reads `teacher_logprobs`."""
    max_mismatch_kl: float = Field(0.1, gt=0)
    """Same as `reinforcement.max_mismatch_kl`."""
    max_failures: int = Field(100, ge=0)
    """Same as `reinforcement.max_failures`."""


def data_of(settings: OptimizerSettings) -> DataSettings | None:
    """What of one's own a stage learns from; None: nothing."""
    kinds = SupervisedSettings | PretrainingSettings | PreferenceSettings | OfflineSettings | RewardModelSettings
    return settings.data if isinstance(settings, kinds) else None


class ReinforcementSettings(OptimizerSettings):
    """Reinforcement."""

    CHANGES: ClassVar = changeable(
        none="reference_device reference_offload max_mismatch_kl max_failures",
        schedule="budget",
        update=(
            "minibatches epochs reference_kl first_attempt_kl reference_estimator entropy train_on_observations "
            "consistency_regularization imitation"
        ),
        sampling="tasks_per_step max_staleness in_flight step_timeout_seconds",
    )

    tasks_per_step: int = Field(16, ge=1)
    """Groups of episodes a step; each has `rollout.group_size` of one task."""
    minibatches: int = Field(1, ge=1)
    """Updates made with the trajectories of one step, each with its share of the groups."""
    epochs: int = Field(1, ge=1)
    """How often each of these updates is made."""
    reference_kl: float = Field(0.0, ge=0)
    """Weight of the divergence from the policy reinforcement began with; 0 does without that policy."""
    first_attempt_kl: float = Field(0.0, ge=0)
    """Weight of that divergence besides, on what was said up to the first answer alone (SCoRe, stage one)."""
    reference_sync_steps: int | None = Field(None, ge=1)
    """After how many updates each time the policy is mixed into that policy, so that what is held on to moves along;
    null: it stays."""
    reference_mixup_alpha: float = Field(1.0, gt=0, le=1)
    """How much of the mixture is the policy: π_ref ← α π + (1 − α) π_ref, weight by weight."""
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
    step_timeout_seconds: Seconds | Literal["auto", "none"] = "auto"
    """Time that an update waits for its groups; then it takes those that are finished, one or more. `auto`: 10 times
    the 95th percentile of measured steps, at least 30 minutes, once 5 steps are measured. `none`: no limit."""
    reference_device: str | None = None
    """What the reference is computed on, as of `policy.device`; null: what the policy is."""
    reference_offload: bool = False
    """Whether the reference is kept on the CPU and brought to its device for each pass, which takes longer."""
    reference_estimator: Literal["k2", "k3", "k3_as_k2"] = "k2"
    """How the divergence is estimated: k2 has the gradient of the reverse divergence, k3 of the forward one;
    `k3_as_k2` reports the one and pulls like the other."""
    entropy: EntropySettings | None = None
    """A bonus for entropy; null leaves it out."""
    train_on_observations: bool = False
    """Whether tokens that tools wrote are trained, too, as if the policy had said them: everything behind the prompt of
    a segment. Off wherever it is not the question whether it should be: published ablations lose by it (Search-R1,
    R1-Code-Interpreter). Nobody drew these tokens, so they have no log-prob from sampling: their ratio is to the
    learner's own log-probs before the step and begins at 1, no correction weighs them, and they are in no measure of
    how far sampler and learner disagree. They take the advantage of the turn that reads them."""
    consistency_regularization: SmoothnessSettings | None = None
    """Consistency of policy and critics under noisy embeddings (RO2O); null disables it."""
    keep: Literal["last", "best"] = "last"
    """Checkpoint that the stage ends with: the `last` one, or the `best` on `evaluation.validation_episodes` tasks that
    are neither trained on nor test tasks. Candidates are the start of the stage and its checkpoints
    (`checkpoint_interval_steps`)."""
    measure_noise_scale: bool = True
    """Whether the gradient noise scale (`update/noise_scale`) is measured, on at most 5 % of the tokens of updates.
    Does not change results."""
    max_mismatch_kl: float = Field(0.1, gt=0, allow_inf_nan=True)
    """Maximum KL divergence between sampler and learner on tokens of the current weights, in nats per token; above it
    the run stops. It is the mean k3 estimate of a step (`sampler/mismatch_kl`). An alarm is raised above
    `sampler/mismatch_limit`, which depends on the precision of the sampler. `.inf`: no limit."""
    max_failures: int = Field(100, ge=0)
    """Maximum number of episodes among the last 1,000 that end with an infrastructure failure (server, sandbox, reward
    or internal error); above it the run stops."""
    offline_mixture: StoredMixtureSettings | None = None
    """Stored episodes mixed with the sampled ones; null uses none. See `docs/stages.md`."""
    sources: dict[str, GroupSourceSettings] = {}
    """Other sources of groups by name, each with its fraction of an update; see `docs/stages.md`."""
    imitation: ImitationSettings | None = None
    """Keep imitating the source's expert; null leaves it out."""
    budget: BudgetSettings | None = None
    """What may be spent; the stage ends with the update that reaches it. `steps` is the most it makes all the same;
    schedules are laid out over whichever ends it."""

    @property
    def holds_on(self) -> bool:
        """Whether the loss pulls to a reference anywhere."""
        return self.reference_kl > 0 or self.first_attempt_kl > 0


class BudgetSettings(Settings):
    """What reinforcement may spend, whatever became of it; null: any."""

    episodes: int | None = Field(None, ge=1)
    """Played for updates."""
    sampled_tokens: int | None = Field(None, ge=1)
    """Drawn from the policy."""
    tool_calls: int | None = Field(None, ge=1)
    """Made by it."""
    seconds: float | None = Field(None, gt=0)
    """Of steps, evaluations before and after not among them."""
    hours: float | None = Field(None, gt=0)
    """Same time in hours."""
    dollars: float | None = Field(None, gt=0)
    """Price of judge requests, also those of evaluations, in the currency of `prompt_price`."""

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by unit."""
        return self.model_dump(exclude_none=True)


class EntropySettings(Settings):
    """A bonus for the entropy of next-token distributions."""

    weight: float = Field(0.001, gt=0)
    """Of the bonus in the loss."""
    band: float | None = Field(None, gt=0, lt=1)
    """How far from the usual entropy at the same turn tokens may be before the bonus weakens or turns: 0.2 for
    0.8 to 1.2 of it; null: no band."""
    strength: float = Field(2.0, gt=0)
    """Of the band; above 1 it pulls entropy down above the band."""
    phase: Literal["constant", "decay", "rise"] = "constant"
    """How the band's strength changes over the stage."""


class ImitationSettings(Settings):
    """Demonstrations beside the policy's own episodes, in the same updates."""

    weight: float = Field(0.1, gt=0)
    """Of demonstrations in the loss, at first."""
    batch_size: int = Field(8, ge=1)
    """Demonstrations a step."""
    final_weight: float | None = Field(None, ge=0)
    """Where the weight ends up, in half a cosine; null: it stays."""
    decay_steps: int = Field(350, ge=1)
    """Steps until it is there."""
    mixed: bool = False
    """Whether the objective counts for one minus the weight."""
