"""Settings of stages: optimizer, data, schedule and budget."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from whetstone.recipe.settings_base import Part, Seconds, Settings, coerce_name, list_changeable_fields


def _data() -> BeforeValidator:
    """Return a validator that accepts a path instead of a mapping."""
    return BeforeValidator(lambda value: {"path": value} if isinstance(value, str) else value)


def coerce_items() -> BeforeValidator:
    """Return a validator that accepts one item instead of a list."""
    return BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value])


class UntilSettings(Settings):
    """Early stopping of a stage before its `steps`, based on recorded steps."""

    success: float | None = Field(None, gt=0, le=1)
    """Fraction of solved episodes, as mean over `window` steps, at which the stage ends; for stages that sample."""
    plateau: int | None = Field(None, ge=1)
    """Number of steps without an improvement of the mean over `window` steps, after which the stage ends."""
    monitor: Literal["reward", "loss"] | None = None
    """Metric of `plateau`; null: the reward if the stage samples episodes, otherwise the loss."""
    min_delta: float = Field(0.01, ge=0)
    """Smallest change of the metric that counts as an improvement."""
    window: int = Field(10, ge=1)
    """Number of steps of the moving mean."""


class OptimizerSettings(Settings):
    """Settings that all stages share: steps, optimizer, schedule, memory and checkpoints."""

    CHANGES: ClassVar = list_changeable_fields(
        none="optimizer_offload checkpoint_interval_steps keep_last keep_interval_steps",
        schedule="steps until warmup_fraction decay_fraction decay",
        update=(
            "learning_rate max_grad_norm max_nonfinite_updates micro_batch_tokens prefix_sharing "
            "logits_memory_mb activation_checkpointing"
        ),
    )

    steps: int = Field(100, ge=1)
    """Number of steps of the stage; schedules span them."""
    until: UntilSettings | None = None
    """Early stopping; null: only `steps` end the stage. Schedules still span `steps`."""
    optimizer: Literal["adamw", "muon", "muon_float32", "muon_bfloat16", "adamw_8bit"] = "adamw"
    """`muon`: Muon for the matrices of the layers, AdamW for the rest. Its Newton-Schulz iteration runs in the
    precision that is faster on the device, measured when the run starts; the run stores the choice as `muon_float32` or
    `muon_bfloat16`, which can also be set. Unless it is set, reinforcement of a tiny policy after a supervised stage
    has the optimizer of that stage. `adamw_8bit`: states in eight bits (GPU)."""
    learning_rate: float = Field(1e-3, gt=0)
    """Learning rate. The default depends on the policy: for a pretrained one 1e-6 (adapters: 1e-5) in reinforcement and
    ten times that in supervised stages; for a tiny one 1e-3, and in reinforcement after a supervised stage 3e-3 with
    Muon and 3e-4 with AdamW, reduced for updates with few groups (`reinforcement.full_rate_groups`)."""
    warmup_fraction: float = Field(0.05, ge=0, le=1)
    """Fraction of the steps, at the start of the stage, in which the learning rate rises from 0."""
    decay_fraction: float = Field(0.0, ge=0, le=1)
    """Fraction of the steps, at the end of the stage, in which the learning rate falls to 0: 0 is a constant schedule,
    all steps after the warm-up a cosine or linear schedule, a smaller fraction warm-up-stable-decay. Unless it is set,
    0.9 in reinforcement of a tiny policy after a supervised stage, otherwise 0."""
    decay: Literal["linear", "cosine"] = "linear"
    """Shape of the decay."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of matrices; gains and biases have none."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Maximum gradient norm; longer gradients are scaled down to it."""
    micro_batch_tokens: int = Field(8192, ge=1)
    """Maximum number of tokens per forward pass; does not change results. A longer segment is computed
    in a separate, larger forward pass."""
    prefix_sharing: bool = True
    """Whether the common prefix of segments in a micro-batch is computed once. Does not change results."""
    logits_memory_mb: int = Field(256, ge=1)
    """Memory for logits that are kept for the backward pass, in MB; logits beyond it are recomputed. Does not change
    results."""
    activation_checkpointing: bool = False
    """Recompute each layer in the backward pass. Saves memory and takes longer."""
    optimizer_offload: bool = False
    """Run the optimizer on the CPU, with its states and a copy of the weights: a GPU then needs 8 bytes less per
    trained parameter, and each update transfers 8 bytes per parameter."""
    max_nonfinite_updates: int = Field(10, ge=1)
    """Number of consecutive updates with a non-finite gradient after which the run stops. None of them is applied."""
    checkpoint_interval_steps: int = Field(25, ge=1)
    """Steps between two checkpoints; a killed run loses at most these steps."""
    keep_last: int = Field(2, ge=1)
    """Number of latest checkpoints to keep, in addition to those at the ends of stages."""
    keep_interval_steps: int | None = Field(None, ge=1)
    """Steps between checkpoints that are kept permanently; null keeps only the latest ones."""


class DataSettings(Settings):
    """Training data of a stage; its path is sufficient."""

    path: str = ""
    """JSON Lines, one JSON list (`.json`), Parquet (`.parquet`, or a folder of such files), or a dataset of Hugging
    Face in a folder; see `docs/guide/data.md` for the columns. Stored episodes: also a run directory."""
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
    keep_evaluation_tasks: bool = False
    """Also train on conversations that contain a task of the evaluation. Unless set, they are left out and counted."""
    length_exponent: float = Field(0.0, ge=0)
    """Exponent with which conversations longer than the mean are repeated in an epoch: one with k times the mean number
    of assistant turns occurs k^exponent times, rounded; 0: each occurs once."""
    min_reward: float | None = None
    """Minimum reward of stored episodes; null keeps all."""
    top_k_per_task: int | None = Field(None, ge=1)
    """Maximum number of stored episodes per task, those with the highest reward; null keeps all."""
    relabel: str | None = None
    """Hindsight relabeling of stored episodes that did not solve their task: `package.module:function` of (trajectory)
    → text of the last user message of the initial prompt for the task that was solved instead, or None; null relabels
    none."""
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
    def conversation_keys(self) -> tuple[str, ...]:
        """Keys that are set and apply only to conversations of a supervised stage."""
        own = type(self).model_fields
        return tuple(n for n in ("keep_evaluation_tasks", "length_exponent") if getattr(self, n) != own[n].default)

    @property
    def filter_keys(self) -> tuple[str, ...]:
        """Keys that are set and apply only to stored episodes."""
        own = type(self).model_fields
        return tuple(name for name in self.OF_EPISODES if getattr(self, name) != own[name].default)


class SupervisedSettings(OptimizerSettings):
    """Supervised fine-tuning on demonstrations of the task source's expert, or on data."""

    batch_size: int = Field(32, ge=1)
    """Number of demonstrations per step. Demonstrations of the expert are used once, those of a file in epochs."""
    data: Annotated[DataSettings | None, _data()] = None
    """Conversations in the format of OpenAI, instead of demonstrations of the expert; or stored episodes of a run."""
    tasks: dict[str, Any] = {}
    """Options of the task source that are different for demonstrations, such as an easier mix."""
    max_turns: int | None = Field(None, ge=1)
    """Maximum number of turns of a demonstration, if the expert has more or fewer than `environment.max_turns`."""
    solved_only: bool = True
    """Train only on demonstrations that solve their task; otherwise on all of the expert, right or wrong."""


class SamplingSettings(OptimizerSettings):
    """Sampling of episodes with the current policy for a later stage, without training."""

    CHANGES: ClassVar = list_changeable_fields(none="max_failures", sampling="tasks_per_step")

    steps: int = Field(1, ge=1)
    """Number of sampling steps."""
    tasks_per_step: int = Field(64, ge=1)
    """Number of groups of episodes per step."""
    max_failures: int = Field(100, ge=0)
    """Same as `reinforcement.max_failures`."""


class PretrainingSettings(OptimizerSettings):
    """Pretraining stage: training on all tokens of plain text."""

    data: Annotated[DataSettings, _data()]
    """Texts: rows with `text`, or a `.txt` file with texts that are separated by empty lines."""
    batch_size: int = Field(16, ge=1)
    """Number of windows of text per step."""
    window: int = Field(512, ge=2)
    """Number of tokens per window, at most the context length of the model."""


class PreferenceSettings(OptimizerSettings):
    """Preference optimization on pairs of answers, or on rated single answers."""

    CHANGES: ClassVar = list_changeable_fields(none="reference_device reference_offload")

    data: Annotated[DataSettings, _data()]
    """Rows with `chosen` and `rejected` (and `prompt`), or with `prompt`, `completion` and `label`; or stored episodes
    of a run, or of a log with `reward`: the best and the worst episode of each task with their exact tokens; for `kto`
    each episode separately; for `step_dpo` all episodes, compared from the turn at which they diverge."""
    batch_size: int = Field(16, ge=1)
    """Number of pairs, or rated single answers, per step; the data are used in epochs."""
    objective: Annotated[Part, coerce_name("dpo")] = Part(name="dpo")
    """Preference loss: `dpo`, `ipo`, `simpo`, `orpo`, `step_dpo` (compares turns that continue the same turn); for
    rated single answers `kto`."""
    reference_device: str | None = None
    """Same as `reinforcement.reference_device`."""
    reference_offload: bool = False
    """Same as `reinforcement.reference_offload`."""


class SmoothnessSettings(Settings):
    """Consistency regularization: penalizes differences under noisy embeddings.

    Two forward passes are compared, one of them with noise.
    """

    noise: float = Field(0.05, gt=0)
    """Standard deviation of the noise, relative to the size of a token's embedding; the noise of a token id is the same
    everywhere in an update and differs between updates."""
    policy: float = Field(0.1, ge=0)
    """Weight of half the squared difference of log-probs."""
    value: float = Field(0.1, ge=0)
    """Weight of half the squared difference of values, added to the critics' loss; no effect without a critic."""


class OfflineSettings(OptimizerSettings):
    """Offline training on stored episodes with the recipe's `advantage` and `objective`; no sampling."""

    CHANGES: ClassVar = list_changeable_fields(
        none="reference_device reference_offload",
        update="reference_kl consistency_regularization",
        evaluation="held_out_interval_steps",
    )

    data: Annotated[DataSettings, _data()]
    """A run directory, or a file of its `trajectories/`."""
    tasks_per_step: int = Field(16, ge=1)
    """Number of groups per step; the data are used in epochs."""
    reference_kl: float = Field(0.0, ge=0)
    """Same as `reinforcement.reference_kl`."""
    reference_device: str | None = None
    """Same as `reinforcement.reference_device`."""
    reference_offload: bool = False
    """Same as `reinforcement.reference_offload`."""
    consistency_regularization: SmoothnessSettings | None = None
    """Same as `reinforcement.consistency_regularization`."""
    held_out: float = Field(0.1, ge=0, lt=1)
    """Fraction of tasks whose episodes are never trained on. `whetstone why` compares their loss with the training
    loss, and recommends to stop, regularize or get more data."""
    held_out_interval_steps: int = Field(5, ge=1)
    """Steps between evaluations of the held-out loss, each on `tasks_per_step` groups; also evaluated at the first and
    last step."""


class StoredMixtureSettings(Settings):
    """Offline mixture: stored episodes that are mixed with the sampled ones of reinforcement."""

    data: Annotated[list[Annotated[DataSettings, _data()]], coerce_items()] = Field(min_length=1)
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
    """Source of groups that are mixed with the sampled groups of reinforcement."""

    source: Annotated[Part, coerce_name()]
    """`{name: stored, data: PATH}`; `{name: imagined, environment: {tools: […]}}`, episodes that the policy plays in
    the environment with other settings, such as simulated tools; or `package.module:name` of a class with
    `async groups(first, count)`, which returns the same groups for the same positions."""
    fraction: float = Field(0.5, ge=0, lt=1)
    """Fraction of all groups of an update that come from the source; sampled groups have the rest."""
    timeout_seconds: Seconds | None = 60.0
    """Time that an update waits for the source; groups that are late join a later update. Null: no limit. With
    `deterministic` there is no limit."""


class RewardModelSettings(OptimizerSettings):
    """Reward model for a later `reinforcement` stage: a linear head on a frozen model.

    The later stage uses it by `reward: {name: reward_model, stage: reward_model}`. The policy is not trained.
    """

    data: Annotated[DataSettings, _data()]
    """Training data: pairs, rated single answers, or stored episodes with rewards."""
    objective: Literal["pairs", "outcomes"] = "pairs"
    """Loss of the reward model. `pairs`: Bradley-Terry loss on pairs; `outcomes`: cross-entropy of success."""
    path: str | None = None
    """Model whose hidden states are used, see `policy.path`; null: the policy, with its weights at this stage."""
    held_out: float = Field(0.2, gt=0, lt=1)
    """Fraction of tasks that is held out to measure the ranking accuracy."""
    steps: int = Field(200, ge=1)
    """Number of optimization steps of the linear head."""
    learning_rate: float = Field(0.05, gt=0)
    """Learning rate of the linear head."""
    weight_decay: float = Field(1e-2, ge=0)
    """Weight decay of the linear head."""


class DistillationSettings(OptimizerSettings):
    """On-policy distillation: the `teacher` scores the tokens that the policy samples.

    Rewards are not used.
    """

    CHANGES: ClassVar = list_changeable_fields(
        none="max_mismatch_kl max_failures",
        update="minibatches objective",
        sampling="tasks_per_step",
    )

    tasks_per_step: int = Field(16, ge=1)
    """Number of groups of episodes per step."""
    minibatches: int = Field(1, ge=1)
    """Same as `reinforcement.minibatches`."""
    objective: Annotated[Part, coerce_name("importance_weighted_distillation")] = Part(
        name="importance_weighted_distillation"
    )
    """Distillation loss: `importance_weighted_distillation`, `on_policy_distillation`, or another that reads
    `teacher_logprobs`."""
    max_mismatch_kl: float = Field(0.1, gt=0)
    """Same as `reinforcement.max_mismatch_kl`."""
    max_failures: int = Field(100, ge=0)
    """Same as `reinforcement.max_failures`."""


def get_data(settings: OptimizerSettings) -> DataSettings | None:
    """Return the `data` settings of a stage; None if the stage has no data."""
    kinds = SupervisedSettings | PretrainingSettings | PreferenceSettings | OfflineSettings | RewardModelSettings
    return settings.data if isinstance(settings, kinds) else None


class BudgetSettings(Settings):
    """Limits on the resources of a reinforcement stage; null: no limit."""

    episodes: int | None = Field(None, ge=1)
    """Maximum number of episodes that are sampled for updates."""
    sampled_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens that are sampled from the policy."""
    tool_calls: int | None = Field(None, ge=1)
    """Maximum number of tool calls of the policy."""
    seconds: float | None = Field(None, gt=0)
    """Maximum duration of all steps in seconds, without the evaluations before and after."""
    hours: float | None = Field(None, gt=0)
    """Same limit as `seconds`, in hours."""
    dollars: float | None = Field(None, gt=0)
    """Maximum price of judge requests, including those of evaluations, in the currency of `prompt_price`."""

    @property
    def limits(self) -> dict[str, float]:
        """Limits that are set, by unit."""
        return self.model_dump(exclude_none=True)


class EntropySettings(Settings):
    """Entropy bonus of the policy's next-token distributions."""

    weight: float = Field(0.001, gt=0)
    """Coefficient of the bonus in the loss."""
    band: float | None = Field(None, gt=0, lt=1)
    """Relative deviation from the usual entropy of the same turn above which the bonus decreases or becomes negative:
    0.2 for 0.8 to 1.2 of it; null: no band."""
    strength: float = Field(2.0, gt=0)
    """Strength of the band; above 1 the bonus is negative above the band."""
    phase: Literal["constant", "decay", "rise"] = "constant"
    """Change of the strength over the stage."""


class ImitationSettings(Settings):
    """Imitation of demonstrations in the same updates as the policy's episodes."""

    weight: float = Field(0.1, gt=0)
    """Initial weight of demonstrations in the loss."""
    batch_size: int = Field(8, ge=1)
    """Number of demonstrations per step."""
    final_weight: float | None = Field(None, ge=0)
    """Final weight, reached by half a cosine; null: the weight is constant."""
    decay_steps: int = Field(350, ge=1)
    """Number of steps of the decay."""
    mixed: bool = False
    """Whether the objective is scaled by one minus the weight."""


class ReinforcementSettings(OptimizerSettings):
    """Settings of a reinforcement learning stage."""

    CHANGES: ClassVar = list_changeable_fields(
        none="reference_device reference_offload max_mismatch_kl max_failures sync_check_interval_steps",
        schedule="budget",
        update=(
            "minibatches epochs full_rate_groups reference_kl first_attempt_kl reference_estimator entropy "
            "train_on_observations consistency_regularization imitation"
        ),
        sampling="tasks_per_step max_staleness in_flight step_timeout_seconds",
    )

    tasks_per_step: int = Field(16, ge=1)
    """Number of groups of episodes per step; each group has `rollout.group_size` episodes of one task."""
    minibatches: int = Field(1, ge=1)
    """Number of updates per step, each on its fraction of the groups."""
    epochs: int = Field(1, ge=1)
    """Number of passes over the updates of a step."""
    full_rate_groups: int | None = Field(None, ge=1)
    """Groups with a learning signal (advantages that are not all 0) from which an update has the full learning rate;
    with fewer, the rate is multiplied by groups / `full_rate_groups`. Null: the rate does not depend on the groups.
    Unless it or the learning rate is set, 32 in reinforcement of a tiny policy after a supervised stage: Adam and Muon
    normalize the gradient, so the few groups left with a signal would otherwise make a full step in a noisy
    direction."""
    reference_kl: float = Field(0.0, ge=0)
    """Coefficient of the KL divergence to the reference model (the policy at the start of reinforcement); 0 needs no
    reference."""
    first_attempt_kl: float = Field(0.0, ge=0)
    """Additional KL coefficient on tokens up to the first answer, in addition to `reference_kl` (SCoRe, stage one)."""
    reference_sync_steps: int | None = Field(None, ge=1)
    """Number of steps between two updates of the reference model by the policy; null: the reference is constant."""
    reference_mixup_alpha: float = Field(1.0, gt=0, le=1)
    """Fraction α of the policy in an update of the reference: π_ref ← α π + (1 − α) π_ref, per weight."""
    admit_ahead: int = Field(0, ge=0)
    """Number of updates that sampling can run ahead of training; 0 alternates between both."""
    max_staleness: int = Field(0, ge=0)
    """Maximum age of the oldest token of an update, in updates; at least `admit_ahead` (prime-rl:
    `max_off_policy_steps`). The difference of both lets fast groups overtake slow ones; an update waits for a group
    that would exceed the limit, and no group is dropped."""
    in_flight: Literal["drain", "continue", "recompute"] = "recompute"
    """Treatment of running turns when weights change, if sampling runs ahead: `drain` finishes them first; `continue`
    keeps the KV cache of the old weights, so later tokens are sampled from a mixture; `recompute` recomputes the KV
    cache (exact)."""
    deterministic: bool = False
    """Sample each group with one version of the weights, so that a run does not depend on timing: weights only change
    when no group is in progress. Always so without `admit_ahead`."""
    step_timeout_seconds: Seconds | Literal["auto", "none"] = "auto"
    """Time that an update waits for its groups; then it takes those that are finished, one or more. `auto`: 10 times
    the 95th percentile of measured steps, at least 30 minutes, once 5 steps are measured. `none`: no limit."""
    reference_device: str | None = None
    """Device of the reference model, see `policy.device`; null: that of the policy."""
    reference_offload: bool = False
    """Keep the reference model on the CPU and move it to its device for each forward pass. Saves memory and takes
    longer."""
    reference_estimator: Literal["k2", "k3", "k3_as_k2"] = "k2"
    """Estimator of the KL divergence: k2 has the gradient of the reverse divergence, k3 that of the forward one;
    `k3_as_k2` reports k3 and has the gradient of k2."""
    entropy: EntropySettings | None = None
    """Entropy bonus; null disables it."""
    train_on_observations: bool = False
    """Also train on tokens of tool results, i.e. all tokens after the prompt of a segment. For experiments only:
    published ablations lose by it (Search-R1, R1-Code-Interpreter). These tokens were not sampled: their ratio is
    relative to the learner's log-probs before the step and starts at 1, no importance correction applies to them, and
    they are excluded from the sampler mismatch. They have the advantage of the turn that reads them."""
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
    sync_check_interval_steps: int | None = Field(50, ge=1)
    """Number of updates between two checks that a server (`engine: vllm`, `sglang`) samples from the trained weights:
    perturbed weights are sent, then the trained ones, and the run stops if log-probs do not follow. Always checked when
    a run starts or resumes; null: only then. A check takes two weight syncs and the memory of one more copy of the
    trained weights."""
    max_failures: int = Field(100, ge=0)
    """Maximum number of episodes among the last 1,000 that end with an infrastructure failure (server, sandbox, reward
    or internal error); above it the run stops."""
    offline_mixture: StoredMixtureSettings | None = None
    """Stored episodes mixed with the sampled ones; null uses none. See `docs/guide/stages.md`."""
    sources: dict[str, GroupSourceSettings] = {}
    """Other sources of groups by name, each with its fraction of an update; see `docs/guide/stages.md`."""
    imitation: ImitationSettings | None = None
    """Imitation of the task source's expert in the same updates; null disables it."""
    budget: BudgetSettings | None = None
    """Budget; the stage ends with the update that reaches it, or after `steps`. Schedules span the one that ends
    first."""

    @property
    def holds_on(self) -> bool:
        """Whether a loss term reads the reference model."""
        return self.reference_kl > 0 or self.first_attempt_kl > 0
