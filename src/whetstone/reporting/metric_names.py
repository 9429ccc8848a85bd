"""What is each number of a run called, and what does it say? One table, which `docs/metrics.md` is written from.

A row of `metrics.jsonl` and what a tracker is told have the same names. Words in capitals stand for what a recipe
names: `reward/NAME` is `reward/correct` and `reward/turn_cost`.

Easy to get wrong: two means of one step are not of the same things. Numbers of episodes and groups are of what was
sampled, those of tokens are of what was learned from.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricName:
    """One number of a step."""

    name: str
    """`area/name`; words in capitals stand for others."""
    unit: str
    """Empty where it has none of its own, as a reward."""
    said: str
    """What it means."""
    when: str
    """Which steps have it."""


def _rows(by_when: Mapping[str, Sequence[tuple[str, str, str]]]) -> tuple[MetricName, ...]:
    return tuple(MetricName(*row, when) for when, rows in by_when.items() for row in rows)


METRICS = _rows({
    "steps with a scored episode": (
        ("reward/mean", "", "Mean outcome of the step's episodes. The optimized quantity."),
        ("episode/reward_min", "", "Lowest outcome of the step's episodes."),
        ("episode/reward_max", "", "Highest outcome of the step's episodes."),
        ("episode/success", "fraction", "Fraction of episodes that solved their task. The quantity of interest."),
        ("episode/effective_samples", "episodes",
         "Number of independent episodes with the same uncertainty of `episode/success`; those of one group are not."),
        ("episode/turns", "turns", "Mean number of turns per episode."),
        ("episode/tool_calls", "calls", "Mean number of tool calls per episode."),
        ("episode/action_tokens", "tokens", "Mean number of sampled tokens per episode."),
        ("episode/context_resets", "segments",
         "Mean number of context rewrites per episode. Each rewrite starts a new segment."),
        ("group/zero_variance_fraction", "fraction",
         "Groups whose episodes all have the same reward. They give no gradient."),
    ),
    "rewards with components": (
        ("reward/NAME", "", "Mean of one reward component."),
    ),
    "rewards with optional components": (
        ("reward/missing_component_fraction", "fraction",
         "Episodes that lack a reward component which other episodes have."),
    ),
    "sources whose tasks have kinds": (
        ("success/KIND", "fraction", "Success on tasks with this `kind` tag."),
    ),
    "every step that samples": (
        ("episode/invalid", "episodes",
         "Episodes without a score: a tool, server or reward failed."),
        ("episode/invalid_fraction", "fraction", "Episodes without a score."),
        ("episode/retried", "episodes", "Episodes repeated after a failure, since the start of the run."),
        ("end_reason/REASON", "fraction",
         "Episodes with this end reason, such as `terminated`, `truncated` or `timeout`."),
        ("group/empty", "groups", "Groups without a sampled token."),
        ("group/filtered", "groups", "Sampled groups that were discarded (`rollout.dynamic_sampling`)."),
        ("group/prompt_too_long", "groups",
         "Groups whose prompt leaves no room for a completion, since the start of the run."),
        ("group/buffered", "groups", "Finished groups that wait for an update."),
        ("group/expired", "groups",
         "Groups discarded because they exceeded the maximum staleness, since the start of the run."),
        ("policy/staleness_mean", "updates", "Mean number of updates between sampling a token and training on it."),
        ("policy/staleness_max", "updates", "Maximum number of updates between sampling a token and training on it."),
        ("cost_per_group/sampled_tokens", "tokens",
         "Tokens sampled per group, including tokens that are not trained on."),
        ("cost_per_group/reused_tokens", "tokens",
         "Tokens of shared prefixes per group, which were not sampled again."),
        ("cost_per_group/tool_calls", "calls", "Tool calls per group."),
        ("cost_per_group/environment_steps", "steps", "Environment steps per group."),
        ("cost_per_step/episodes", "episodes", "Episodes sampled in the step, including discarded ones."),
        ("cost_per_step/sampled_tokens", "tokens", "Tokens sampled in the step."),
        ("cost_per_step/tool_calls", "calls", "Tool calls in the step."),
        ("time/generation", "seconds", "Time during which the engine computed."),
        ("time/environment_wait_mean", "seconds", "Mean time per episode spent waiting for tools and the environment."),
        ("time/turn_deadline", "seconds", "Deadline of a turn, if one is set or derived (`turn_timeout_seconds`)."),
        ("time/group_deadline", "seconds", "Deadline of a group, if one is set or derived (`group_timeout_seconds`)."),
        ("time/step_deadline", "seconds",
         "Time that a step waits for its groups, if it is set or derived (`step_timeout_seconds`)."),
        ("throughput/episodes_per_second", "episodes per second", "Episodes divided by the duration of the step."),
    ),
    "runs on Ray (`scale`)": (
        ("scale/workers", "workers", "Environment workers that are available at the end of the step."),
        ("scale/replicas", "replicas", "Engine replicas that are available at the end of the step."),
        ("scale/nodes", "nodes", "Nodes on which these workers and replicas run."),
        ("scale/worker_utilization", "fraction", "Slots of the environment workers that were running an episode."),
        ("scale/worker_cpu_seconds", "seconds", "CPU time of the environment workers in the step."),
        ("scale/tool_wait_fraction", "fraction", "Running episodes that waited for a tool or the environment."),
        ("scale/worker_queue", "episodes", "Mean number of episodes that waited for a worker slot."),
        ("scale/replica_utilization", "fraction", "Fraction of the step during which the engine replicas computed."),
        ("scale/replica_queue", "requests", "Mean number of requests in a replica."),
        ("scale/prefix_cache_hit_rate", "fraction",
         "Prompt tokens whose keys and values were in the cache of the replica."),
        ("scale/transfer_seconds", "seconds", "Time until all replicas had received and verified the new weights."),
        ("scale/transfer_mib", "MiB", "Size of the weights sent in the step, counted once for all replicas."),
        ("scale/requests_rerouted", "requests", "Requests sent to another replica because their replica had died."),
        ("scale/groups_reassigned", "groups", "Groups moved to another worker because their worker had died."),
        ("scale/replicas_died", "replicas", "Engine replicas that died in the step and were restarted."),
        ("scale/workers_died", "workers", "Environment workers that died in the step."),
    ),
    "steps with a call": (
        ("tools/well_formed_fraction", "fraction", "Tool calls with a known tool name and valid arguments."),
        ("tools/TOOL/calls", "calls", "Calls of a tool. Calls of tools that do not exist are `(unknown tools)`."),
        ("tools/TOOL/error_fraction", "fraction", "Calls that failed, by the model's arguments or by the tool."),
        ("tools/TOOL/failed_fraction", "fraction",
         "Calls that failed by an exception of the tool, a timeout or an unavailable backend."),
        ("tools/TOOL/truncated_fraction", "fraction", "Results that were cut to `environment.max_result_characters`."),
        ("tools/TOOL/seconds_mean", "seconds", "Mean duration of a call, including retries and the rate limit."),
        ("tools/TOOL/seconds_max", "seconds", "Duration of the longest call."),
    ),
    "episodes with a flag": (
        ("flag/MARK", "fraction", "Episodes with this flag, such as `hinted` or `view_dropped`."),
    ),
    "updates that give credit": (
        ("advantage/abs_mean", "", "Mean absolute advantage of the tokens."),
        ("advantage/zero_fraction", "fraction", "Tokens whose advantage is exactly 0. They give no gradient."),
        ("loss/policy", "", "Policy term of the loss."),
    ),
    "`credit_filters`": (
        ("credit_filters/NAME_removed_fraction", "fraction", "Trajectories removed by this credit filter."),
    ),
    "`rollout.trajectory_filters`, `rollout.replay`": (
        ("trajectory_filters/removed_fraction", "fraction", "Trajectories removed by the trajectory filters."),
        ("replay/injected", "trajectories", "Replayed trajectories in the batch."),
    ),
    "every update": (
        ("policy/entropy", "nats per token",
         "Entropy of the policy. A fall to 0 without a rise of success means that exploration has stopped."),
        ("loss/total", "", "Total loss of the update."),
        ("update/tokens", "tokens", "Trained tokens."),
        ("update/computed_tokens", "tokens", "Tokens in the forward pass; shared prefixes count once."),
        ("update/shared_fraction", "fraction", "Tokens saved by prefix sharing."),
        ("update/oversized_micro_batches", "micro-batches",
         "Micro-batches above the token budget because a single episode exceeds it."),
        ("update/grad_norm", "", "Gradient norm before clipping."),
        ("update/learning_rate", "", "Learning rate of the update."),
        ("update/skipped_fraction", "fraction",
         "Updates that left the weights unchanged because the gradient was 0 or not finite."),
        ("update/nonfinite_fraction", "fraction", "Updates with a gradient that was not finite."),
        ("throughput/update_tokens_per_second", "tokens per second", "Tokens of the update divided by its duration."),
        ("throughput/mfu", "fraction", "Model FLOPs utilization, if the peak performance of the device is known."),
        ("memory/peak_gib", "GiB", "Peak memory since the start of the run; of the accelerator if there is one."),
        ("memory/micro_batch_tokens", "tokens", "Token budget of a forward pass; halved after an out-of-memory error."),
    ),
    "learners of several processes (`scale.learner_processes`)": (
        ("scale/learner_balance", "fraction",
         "Load balance: computed work divided by the work possible in the time of the slowest process."),
        ("scale/learner_seconds", "seconds",
         "Duration of an update on the slowest process, including synchronization."),
        ("scale/learner_transfer_seconds", "seconds",
         "Time to send the segments to the processes and to receive the weights."),
    ),
    "objectives of tokens with ratios": (
        ("policy/ratio", "", "Mean probability ratio of a token between the new and the old policy."),
        ("policy/update_kl", "nats per token",
         "KL divergence between the policy before and after the updates of the step (k3); `ppo_kl` of verl."),
        ("policy/log_ratio_clamped_fraction", "fraction", "Tokens whose log-ratio was clamped to avoid overflow."),
    ),
    "`reinforcement.measure_noise_scale`, steps that measure": (
        ("update/noise_scale", "groups",
         "Gradient noise scale tr(Σ) / |G|² (McCandlish et al. 2018): the number of groups per update at which noise "
         "and signal of the gradient are equal. Ratio of two moving averages; absent while |G|² is not positive."),
        ("update/noise_scale_min", "groups",
         "Lower end of a 95 % interval of the noise scale, from the spread of the measurements of |G|²."),
        ("update/gradient_variance", "",
         "tr(Σ): variance of the gradient of one group. Moving average of an unbiased estimate."),
        ("update/gradient_signal", "",
         "|G|²: squared norm of the expected gradient. Moving average of an unbiased estimate, which can be negative."),
        ("update/groups", "groups", "Groups of the measured update."),
    ),
    "`reinforcement.reference_kl`, objectives with a reference": (
        ("policy/reference_kl", "nats per token",
         "KL divergence from the reference policy (k3); `kl` of TRL and verl."),
    ),
    "objectives that clip": (
        ("policy/clip_fraction", "fraction", "Tokens whose ratio was clipped. They give no gradient."),
    ),
    "`objective: clipped`": (
        ("policy/clip_high_fraction", "fraction",
         "Tokens with a positive advantage that were clipped at the upper bound."),
        ("policy/clip_low_fraction", "fraction",
         "Tokens with a negative advantage that were clipped at the lower bound."),
    ),
    "`dual_clip` is set": (
        ("policy/dual_clip_fraction", "fraction",
         "Tokens with a negative advantage whose loss is bounded by `dual_clip`."),
    ),
    "`objective: entropy_balanced`": (
        ("policy/balanced_fraction", "fraction", "Tokens above the clip bound that keep a bounded gradient."),
    ),
    "`objective: kl_cov`": (
        ("policy/covariance_fraction", "fraction", "Tokens selected by their covariance for the KL penalty."),
    ),
    "imitation, `objective: policy_gradient`": (
        ("policy/token_probability", "probability", "Mean probability of the trained tokens."),
    ),
    "`objective: advantage_weighted`": (
        ("policy/sample_weight", "", "Mean weight of a token in the loss."),
        ("policy/capped_fraction", "fraction", "Tokens whose weight reached the maximum."),
    ),
    "`reinforcement.entropy`": (
        ("policy/entropy_bonus", "nats per token", "Entropy bonus in the loss."),
    ),
    "`reinforcement.entropy.band`": (
        ("policy/entropy_out_of_band_fraction", "fraction", "Tokens whose entropy is outside of the band."),
    ),
    "updates with older tokens": (
        ("policy/staleness_kl", "nats per token",
         "KL divergence between the policy that sampled older tokens and the current policy (k3)."),
    ),
    "updates with sampled tokens": (
        ("sampler/mismatch_mean", "nats",
         "Mean difference between the log-probs of the sampler and of the learner for the same tokens."),
        ("sampler/mismatch_max", "nats", "Maximum difference between the log-probs of the sampler and of the learner."),
        ("sampler/mismatch_kl", "nats per token",
         "KL divergence between sampler and learner (k3). Near 0 with rounding errors only; growth means a fault."),
        ("sampler/mismatch_limit", "nats per token",
         "Maximum of `sampler/mismatch_kl` that rounding explains at the precision of the sampler."),
    ),
    "steps with an alarm": (
        ("alarm/NAME", "",
         "1 while this alarm is raised, such as `alarm/falling_success`; see `docs/reading-a-run.md`."),
    ),
    "`importance_correction`": (
        ("importance/weight_mean", "",
         "Mean importance weight of tokens that are off-policy or differ between sampler and learner."),
        ("importance/truncated_fraction", "fraction", "Tokens whose importance weight was truncated or masked."),
        ("importance/effective_sample_fraction", "fraction",
         "Effective sample size, (Σw)² / (n Σw²). It is 1 if all tokens have the same weight."),
    ),
    "`critic`": (
        ("loss/value", "", "Value term of the loss."),
        ("value/loss", "", "Loss of the critics, as defined by `critic.loss`."),
    ),
    "`reinforcement.imitation`": (
        ("loss/imitation", "", "Imitation term of the loss."),
    ),
    "`loss_terms`, and keys that add a term to the loss": (
        ("loss/NAME", "", "Weighted loss of the term NAME, such as `loss/reference_kl` or `loss/entropy`."),
    ),
    "`supervised`": (
        ("loss/supervised", "nats per token", "Negative log-likelihood of the demonstrations per token."),
        ("demonstrations/skipped_fraction", "fraction",
         "Demonstrations that were skipped because they did not solve their task."),
    ),
    "demonstrations of an expert": (
        ("demonstrations/retried", "count",
         "Demonstrations that were played again because a sandbox, tool or server failed."),
        ("demonstrations/lost", "count",
         "Demonstrations that failed in every attempt; each is a fault in the journal."),
    ),
    "`pretraining`": (
        ("loss/pretraining", "nats per token", "Negative log-likelihood of the text per token."),
        ("data/epoch", "epochs", "Number of passes over the data."),
    ),
    "updates that moved weights": (
        ("update/relative_norm", "fraction", "Norm of the weight change divided by the norm of the weights."),
    ),
    "`reinforcement.train_on_observations`": (
        ("update/observation_fraction", "fraction", "Trained tokens that were written by tools."),
    ),
    "`critic.ensemble_size` above 1": (
        ("value/ensemble_std", "", "Mean standard deviation of the values of an ensemble of critics."),
    ),
    "`reinforcement.consistency_regularization`": (
        ("consistency/policy", "", "Consistency loss of the policy under noise."),
    ),
    "`reinforcement.consistency_regularization` with `critic`": (
        ("consistency/value", "", "Consistency loss of the critics under noise."),
    ),
    "objectives that ask a teacher": (
        ("distillation/advantage", "nats per token",
         "Mean log-prob difference between teacher and policy on the sampled tokens."),
    ),
    "objectives of pairs": (
        ("preference/pairs", "pairs", "Pairs in the update."),
        ("preference/margin", "nats", "Mean preference margin of the chosen over the rejected completion."),
        ("preference/accuracy", "fraction", "Pairs with a positive margin."),
    ),
    "`objective: refuel`": (
        ("preference/regression_error", "", "Mean absolute error of the regression."),
    ),
    "`objective: kto`": (
        ("preference/reference_point", "nats",
         "Reference point of KTO: the estimated KL divergence from the reference policy."),
    ),
    "`implicit_prm`": (
        ("implicit_prm/loss", "", "Loss of the implicit process reward model."),
        ("implicit_prm/pairs", "pairs", "Pairs on which the implicit process reward model was trained."),
        ("implicit_prm/accuracy", "fraction", "Pairs ranked correctly by the implicit process reward model."),
    ),
    "rewards that ask a judge": (
        ("judge/COUNT", "",
         "Use of the judges since the start of the run: `requests`, `cached`, `retries`, `failed`, "
         "`prompt_tokens`, `completion_tokens`, `cost`."),
    ),
    "parts with `metrics()`": (
        ("PART/NAME", "",
         "Metrics of a component, by its recipe key and name: `curriculum/stage`, `replay/success_replay/stored`, "
         "`context_transforms/lessons/count`. Four keys have a short name: `allocate` (`rollout.budget_allocation`), "
         "`start` (`start_states`), `stops` (`early_stopping`), `rewrites` (`context_rewrites`)."),
    ),
    "`preference`, `offline`": (
        ("data/skipped_fraction", "fraction", "Stored groups that were skipped because no episode has a score."),
        ("data/reward", "", "Mean reward of the stored episodes in the step."),
    ),
    "`offline.held_out`": (
        ("held_out/loss", "", "Loss on the held-out stored episodes."),
        ("held_out/kl", "nats per token",
         "KL divergence between the policy that sampled the held-out episodes and the current policy (k3)."),
    ),
    "`offline.held_out` with `critic`": (
        ("held_out/value_loss", "", "Loss of the critics on the held-out stored episodes."),
    ),
    "trajectories of this provenance": (
        ("provenance/NAME", "trajectories",
         "Trajectories of the update by provenance: `sampled`, `replayed`, `imagined`, `demonstrated` or `human`."),
        ("provenance/NAME_tokens", "tokens", "Action tokens of these trajectories."),
    ),
    "`reinforcement.offline_mixture`": (
        ("offline/groups", "groups", "Offline groups in the update."),
        ("offline/reward", "", "Mean reward of the offline groups."),
    ),
    "`reinforcement.sources`": (
        ("sources/NAME/groups", "groups", "Groups of this source in the update."),
        ("sources/NAME/reward", "", "Mean reward of these groups."),
        ("sources/NAME/late", "", "1 if the source had no groups within its time limit."),
    ),
    "`reinforcement.offline_mixture.mode: alternating`": (
        ("offline/NAME", "",
         "Metric of the update on offline groups only: `loss/total`, `update/tokens`, `update/grad_norm`, "
         "`policy/clip_fraction`."),
    ),
    "`rollout.replay` with a separate pass": (
        ("second_pass/NAME", "",
         "Metric of the second update, on replayed trajectories only; the same names as `offline/NAME`."),
    ),
    "every step that samples or is shown": (
        ("time/rollout", "seconds", "Time until the groups or demonstrations of the step were available."),
    ),
    "every step": (
        ("time/update", "seconds", "Time from then to the end of the step."),
        ("run/recipe_changes", "changes", "Changes of the recipe so far (`--resume KEY=VALUE`); absent if none."),
        ("time/elapsed_seconds", "seconds", "Training time since the start of the run, over all stages."),
        ("throughput/tokens_per_second", "tokens per second",
         "Sampled tokens or demonstration tokens divided by the duration of the step."),
    ),
    "`whetstone live`": (
        ("live/turns", "turns", "Trained turns."),
        ("live/hinted_fraction", "fraction", "Trained turns that were sampled with a hint."),
        ("live/intervention_fraction", "fraction", "Trained turns that a person took over."),
        ("live/replayed", "turns", "Earlier turns that were trained again."),
    ),
    "`live.guard`": (
        ("live/held_out_success", "fraction", "Success on the held-out tasks."),
        ("live/rolled_back_to", "updates", "Update whose weights were restored."),
    ),
})  # fmt: skip
"""By when a step has them, (name, unit, meaning) of the numbers in `metrics.jsonl`."""

TRACKED = _rows({
    "every step": (
        ("STAGE/step", "steps", "Step within its stage. The step of the tracker counts over all stages."),
    ),
    "every evaluation": (
        ("evaluation/success", "fraction", "Success on the held-out tasks."),
        ("evaluation/success_low", "fraction", "Lower bound of the 95 % interval of success."),
        ("evaluation/success_high", "fraction", "Upper bound of the 95 % interval of success."),
        ("evaluation/reward", "", "Mean outcome."),
        ("evaluation/turns", "turns", "Mean number of turns per episode."),
        ("evaluation/tool_calls", "calls", "Mean number of tool calls per episode."),
        ("evaluation/action_tokens", "tokens", "Mean number of sampled tokens per episode."),
        ("evaluation/episodes", "episodes", "Episodes with a score."),
        ("evaluation/invalid", "episodes", "Episodes without a score."),
    ),
    "evaluations with a call": (
        ("evaluation/well_formed_fraction", "fraction", "Tool calls with a known tool name and valid arguments."),
    ),
    "`evaluation.samples` above 1": (
        ("evaluation/pass_at_K", "fraction", "Tasks solved by at least one of K samples."),
    ),
    "once, at the end": (
        ("summary/success_untrained", "fraction", "Success of the first evaluation."),
        ("summary/success_before", "fraction", "Success at the start of the last stage."),
        ("summary/success_after", "fraction", "Success of the last evaluation."),
        ("summary/training_seconds", "seconds", "Training time without evaluations."),
        ("summary/parameters", "parameters", "Number of parameters of the policy."),
    ),
})  # fmt: skip
"""What trackers are told beside them."""
PARTS = (
    "curriculum", "allocate", "start", "environment_wrapper", "dynamic_sampling", "sources", "reward",
    "context_transforms", "stops", "rewrites", "replay", "trajectory_filters",
)  # fmt: skip
"""What `PART` stands for."""


def described(name: str) -> MetricName | None:
    """The row of the table that says what this number is; the one that fits it closest. None: there is none."""
    return _exact().get(name) or next((row for pattern, row in _patterns() if pattern.fullmatch(name)), None)


@functools.cache
def _exact() -> dict[str, MetricName]:
    return {row.name: row for row in (*METRICS, *TRACKED)}


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], MetricName]]:
    found = []
    for row in (*METRICS, *TRACKED):
        if any(word.isupper() for word in re.split(r"[/_]", row.name)):
            text = re.sub(r"[A-Z]{2,}|\bK\b|_K$", lambda word: _of(word.group()), row.name)
            found.append((re.compile(text), row))
    return sorted(found, key=lambda each: each[1].name.startswith("PART"))


def _of(word: str) -> str:
    if word == "PART":
        return f"(?:{'|'.join(PARTS)})"
    if word == "STAGE":
        return "[a-z_]+"
    return r"_\d+" if word == "_K" else ".+"
