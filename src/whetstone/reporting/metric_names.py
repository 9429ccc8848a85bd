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
        ("reward/mean", "", "Mean outcome of the step's episodes; what is optimised."),
        ("episode/success", "share", "Episodes that solved their task; what is wanted."),
        ("episode/turns", "turns", "Mean turns of an episode."),
        ("episode/tool_calls", "calls", "Mean tool calls of an episode."),
        ("episode/action_tokens", "tokens", "Mean tokens that were sampled in an episode."),
        ("episode/new_segments", "segments",
         "Mean times an episode's context was rewritten, so that a new segment began."),
        ("group/zero_variance_fraction", "share",
         "Groups whose episodes all earned the same: they have nothing to compare."),
    ),
    "rewards with components": (
        ("reward/NAME", "", "Mean of one component of the reward."),
    ),
    "where there is one": (
        ("reward/incomplete", "share", "Episodes without a component that others have."),
    ),
    "sources whose tasks have kinds": (
        ("success/KIND", "share", "Success on tasks with this `kind` tag."),
    ),
    "every step that samples": (
        ("episode/invalid", "episodes", "Episodes without a score: what failed was not the agent."),
        ("episode/invalid_fraction", "share", "Episodes without a score."),
        ("episode/retried", "episodes", "Episodes so far that were played again after something failed."),
        ("end_reason/REASON", "share", "Episodes that ended by `terminated`, `truncated`, `timeout` or another way."),
        ("group/without_tokens", "groups", "Groups without one sampled token."),
        ("group/filtered", "groups",
         "Groups that were sampled for the step and did not count (`rollout.dynamic_sampling`)."),
        ("group/too_long", "groups", "Groups so far whose prompt leaves no room for an answer."),
        ("group/buffered", "groups", "Finished groups that wait for an update."),
        ("group/expired", "groups", "Groups so far that became too old to be learned from."),
        ("policy/staleness_mean", "updates",
         "How many updates the tokens that were learned from lie back, in the mean."),
        ("policy/staleness_max", "updates", "How many updates the oldest token lies back."),
        ("cost_per_group/sampled_tokens", "tokens", "Drawn from the policy for a group, whatever became of them."),
        ("cost_per_group/reused_tokens", "tokens", "Of shared prefixes that nobody drew again."),
        ("cost_per_group/tool_calls", "calls", "Tool calls of a group."),
        ("cost_per_group/environment_steps", "steps", "Answers of the environment to a group."),
        ("cost_per_step/episodes", "episodes", "Played for the step, those that did not count too."),
        ("cost_per_step/sampled_tokens", "tokens", "Drawn for the step."),
        ("cost_per_step/tool_calls", "calls", "Tool calls of the step."),
        ("time/engine", "seconds", "In which the engine computed."),
        ("time/environment", "seconds", "In which an episode waited for tools and environment, in the mean."),
        ("throughput/episodes_per_second", "episodes per second", "Episodes over the whole step."),
    ),
    "runs on Ray (`scale`)": (
        ("scale/workers", "workers", "Environment workers that could be given groups at the end of the step."),
        ("scale/replicas", "replicas", "Engine replicas that could be asked at the end of the step."),
        ("scale/nodes", "nodes", "On which these workers and replicas were."),
        ("scale/worker_utilisation", "share", "Places of environment workers in which an episode ran."),
        ("scale/worker_cpu_seconds", "seconds", "Processor time of the workers in the step."),
        ("scale/on_tools_fraction", "share", "Running episodes of the workers that waited for their environment."),
        ("scale/worker_queue", "episodes", "Episodes that waited for a place in a worker, in the mean."),
        ("scale/replica_utilisation", "share", "Of the step's time in which engine replicas computed."),
        ("scale/replica_queue", "requests", "Requests in a replica, in the mean."),
        ("scale/prefix_cache_hit_rate", "share", "Of the prompts' tokens, those whose keys a replica had already."),
        ("scale/transfer_seconds", "seconds", "Until all replicas had the step's new weights, and had checked them."),
        ("scale/transfer_mib", "MiB", "Weights that were sent in the step, once for all replicas."),
        ("scale/rerouted", "requests", "Asked of another replica because one was gone."),
        ("scale/groups_taken_back", "groups", "Played on by another worker because theirs was gone."),
        ("scale/replicas_died", "replicas", "Replicas that died in the step and began again."),
        ("scale/workers_died", "workers", "Environment workers that died in the step."),
    ),
    "steps with a call": (
        ("tools/well_formed_fraction", "share", "Calls that named a tool on offer with arguments it accepts."),
    ),
    "where one does": (
        ("flag/MARK", "share", "Episodes that carry this mark, such as `replayed`, `view_dropped`."),
    ),
    "updates that give credit": (
        ("advantage/abs_mean", "", "Mean size of the advantages of tokens."),
        ("credit/zero_fraction", "share", "Tokens whose advantage is exactly 0: they teach nothing."),
        ("loss/policy", "", "The objective's part of the loss."),
    ),
    "`credit_filters`": (
        ("filter/NAME_removed_fraction", "share", "Trajectories a credit filter took out."),
    ),
    "`rollout.trajectory_filters`, `rollout.replay`": (
        ("trajectory_filters/removed_fraction", "share", "Trajectories that were not chosen to be learned from."),
        ("replay/injected", "trajectories", "Stored trajectories that were learned from."),
    ),
    "every update": (
        ("policy/entropy", "nats per token",
         "How undecided the policy is. A fall to 0 while success stands still: it stopped exploring."),
        ("loss", "", "The whole loss of the update."),
        ("update/tokens", "tokens", "Tokens that were learned from."),
        ("update/computed_tokens", "tokens", "Tokens that were computed, shared prefixes once."),
        ("update/shared_fraction", "share", "Tokens that need not be computed again, for forks share them."),
        ("update/over_budget", "micro-batches", "Forward passes larger than the budget of tokens, for one episode is."),
        ("update/gradient_norm", "", "The gradient's norm before it is clipped."),
        ("update/learning_rate", "", "Of the schedule, at this update."),
        ("update/skipped", "share", "Updates that changed nothing: the gradient was 0, or not finite."),
        ("update/nonfinite", "share", "Updates whose gradient was not finite."),
        ("throughput/update_tokens_per_second", "tokens per second", "Tokens of an update over its time."),
        ("throughput/mfu", "share",
         "Floating-point operations of the model over what the device can do; where that is known."),
        ("memory/peak_gib", "GiB", "The most memory held so far, the device's where it has its own."),
        ("memory/micro_batch_tokens", "tokens", "Of one forward pass; halved where memory did not suffice."),
    ),
    "learners of several processes (`scale.learner_processes`)": (
        ("scale/learner_balance", "share",
         "What processes compute of an update, over what they could in the time the slowest of each round takes."),
        ("scale/learner_seconds", "seconds", "Of the slowest process, for an update; waiting for the others is in it."),
        ("scale/learner_transfer_seconds", "seconds",
         "Until processes had an update's segments, and the run their weights."),
    ),
    "objectives of tokens with ratios": (
        ("policy/ratio", "", "Mean ratio of new to old probability of a token."),
        ("policy/kl", "nats per token",
         "How far the step's updates moved the policy from what it was before them (k3)."),
        ("policy/clamped_fraction", "share", "Tokens whose log-ratio is beyond what numbers bear."),
    ),
    "`reinforcement.reference_kl`, objectives with a reference": (
        ("policy/reference_kl", "nats per token", "Distance to the reference policy (k3)."),
    ),
    "objectives that clip": (
        ("policy/clip_fraction", "share",
         "Tokens that moved as far as one update may move them; they had no gradient."),
    ),
    "`objective: clipped`": (
        ("policy/clip_high_fraction", "share", "Clipped tokens that are good and became likelier."),
        ("policy/clip_low_fraction", "share", "Clipped tokens that are bad and became less likely."),
    ),
    "`dual_clip` is set": (
        ("policy/dual_clip_fraction", "share", "Bad tokens that became far likelier and are held by `dual_clip`."),
    ),
    "`objective: entropy_balanced`": (
        ("policy/balanced_fraction", "share", "Tokens above the clip that kept a bounded gradient."),
    ),
    "`objective: kl_cov`": (
        ("policy/covariance_fraction", "share", "Tokens that are held for their covariance."),
    ),
    "imitation, `objective: policy_gradient`": (
        ("policy/likelihood", "probability", "Mean probability of the tokens that were learned from."),
    ),
    "`objective: advantage_weighted`": (
        ("policy/weight", "", "Mean weight a token was learned with."),
        ("policy/capped_fraction", "share", "Tokens whose weight is the largest allowed."),
    ),
    "`reinforcement.entropy`": (
        ("policy/entropy_bonus", "nats per token", "Entropy the loss is rewarded for."),
    ),
    "`reinforcement.entropy.band`": (
        ("policy/outside_band", "share", "Tokens whose entropy is outside of the band."),
    ),
    "updates with older tokens": (
        ("policy/staleness_kl", "nats per token", "How far older tokens lie from the present weights (k3)."),
    ),
    "updates with sampled tokens": (
        ("sampler/mismatch_mean", "nats",
         "Mean difference of log-probs between sampler and learner on the same tokens."),
        ("sampler/mismatch_max", "nats", "The largest difference of log-probs on one token."),
        ("sampler/mismatch_kl", "nats per token",
         "How far they disagree (k3). Rounding only: near 0 all along; growth is a fault."),
    ),
    "`importance_correction`": (
        ("correction/weight", "", "Mean weight of tokens an older policy or another computation drew."),
        ("correction/changed_fraction", "share", "Tokens whose weight was truncated or masked."),
        ("importance/effective_sample_fraction", "share", "(Σw)² / (n Σw²): 1 where all tokens count alike."),
    ),
    "`critic`": (
        ("loss/value", "", "The critics' part of the loss."),
        ("value/error", "", "Error of the critics, as `critic.loss` has it."),
    ),
    "`reinforcement.imitation`": (
        ("loss/imitation", "", "What demonstrations beside reinforcement add to the loss."),
    ),
    "`supervised`": (
        ("loss/supervised", "nats per token", "How surprised the policy is by demonstrations."),
        ("demonstrations/left_out", "share", "Demonstrations that taught nothing."),
    ),
    "`pretraining`": (
        ("loss/pretraining", "nats per token", "How surprised the policy is by plain text."),
        ("data/epoch", "epochs", "How often the data were gone through."),
    ),
    "updates that moved weights": (
        ("update/relative_norm", "share", "How far the weights moved, against their size."),
    ),
    "`reinforcement.train_on_observations`": (
        ("update/observation_fraction", "share", "Tokens tools wrote that were trained all the same."),
    ),
    "`critic.ensemble_size` above 1": (
        ("value/deviation", "", "Mean standard deviation of the values of a critic ensemble."),
    ),
    "`reinforcement.consistency_regularization`": (
        ("smoothness/policy", "", "How far the policy is apart from itself under noise."),
    ),
    "`reinforcement.consistency_regularization` with `critic`": (
        ("smoothness/value", "", "How far critics are apart from themselves under noise."),
    ),
    "objectives that ask a teacher": (
        ("distillation/advantage", "nats per token", "How much likelier the teacher finds what the policy said."),
    ),
    "objectives of pairs": (
        ("preference/pairs", "pairs", "Pairs that were compared."),
        ("preference/margin", "nats", "By how much the better one of a pair is preferred, in the mean."),
        ("preference/accuracy", "share", "Pairs whose better one is preferred."),
    ),
    "`objective: refuel`": (
        ("preference/miss", "", "Mean size of the regression's error."),
    ),
    "`objective: kto`": (
        ("preference/reference_point", "nats", "What desirable and undesirable ones are measured against."),
    ),
    "`implicit_prm`": (
        ("process_model/loss", "", "Loss of the model of turns."),
        ("process_model/pairs", "pairs", "Pairs the model of turns learned from."),
        ("process_model/accuracy", "share", "Pairs the model of turns puts in order."),
    ),
    "rewards that ask a judge": (
        ("judge/COUNT", "",
         "What judges were used for so far: `questions`, `cached`, `asked_again`, `failed`, `prompt_tokens`, "
         "`completion_tokens`, `cost`."),
    ),
    "parts with `metrics()`": (
        ("PART/NAME", "",
         "Metrics of a component, by its recipe key and name: `curriculum/stage`, `replay/success_replay/stored`, "
         "`context_transforms/lessons/count`. Four keys have a short name: `allocate` (`rollout.budget_allocation`), "
         "`start` (`start_states`), `stops` (`early_stopping`), `rewrites` (`context_rewrites`)."),
    ),
    "`preference`, `offline`": (
        ("data/left_out", "share", "Stored groups that cannot be learned from."),
        ("data/reward", "", "Mean reward of the stored episodes of the step."),
    ),
    "`offline.held_out`": (
        ("held_out/loss", "", "Loss on stored episodes that are held out."),
        ("held_out/divergence", "nats per token", "How far the policy is from whoever drew the held-out episodes."),
    ),
    "`offline.held_out` beside `critic`": (
        ("held_out/value_error", "", "Error of the critics on stored episodes that are held out."),
    ),
    "`reinforcement.offline_mixture`": (
        ("stored/groups", "groups", "Stored groups beside fresh ones."),
        ("stored/reward", "", "Mean reward of the stored groups beside fresh ones."),
    ),
    "`reinforcement.offline_mixture.mode: alternating`": (
        ("stored/NAME", "",
         "Of updates on stored groups alone: `loss`, `update/tokens`, `update/gradient_norm`, `policy/clip_fraction`."),
    ),
    "`rollout.replay` with a pass of its own": (
        ("second_pass/NAME", "", "Of the update on trajectories a replay learns from again, as `stored/NAME`."),
    ),
    "every step that samples or is shown": (
        ("time/rollout", "seconds", "Until the step's groups, or demonstrations, were there."),
    ),
    "every step": (
        ("time/update", "seconds", "From then on to the end of the step."),
        ("time/elapsed_seconds", "seconds", "Of training so far, all stages together."),
        ("throughput/tokens_per_second", "tokens per second", "Sampled or shown tokens over the whole step."),
    ),
    "`whetstone live`": (
        ("live/turns", "turns", "Turns that were learned from."),
        ("live/hinted", "share", "Turns that were learned from with a hint."),
        ("live/interventions", "share", "Turns that were learned from and that a person took over."),
        ("live/replayed", "turns", "Earlier turns that were learned from again."),
    ),
    "`live.guard`": (
        ("live/held_out_success", "share", "Success on held-out tasks."),
        ("live/rolled_back_to", "updates", "The update whose weights were brought back."),
    ),
})  # fmt: skip
"""By when a step has them, (name, unit, meaning) of the numbers in `metrics.jsonl`."""

TRACKED = _rows({
    "every step": (
        ("STAGE/step", "steps", "The step of its stage; a tracker's own counts all stages."),
    ),
    "every evaluation": (
        ("evaluation/success", "share", "Success on held-out tasks."),
        ("evaluation/success_low", "share", "Where the 95 % interval of success begins."),
        ("evaluation/success_high", "share", "Where the 95 % interval of success ends."),
        ("evaluation/reward", "", "Mean outcome."),
        ("evaluation/turns", "turns", "Mean turns of an episode."),
        ("evaluation/tool_calls", "calls", "Mean tool calls of an episode."),
        ("evaluation/action_tokens", "tokens", "Mean sampled tokens of an episode."),
        ("evaluation/episodes", "episodes", "Episodes with a valid ending."),
        ("evaluation/invalid", "episodes", "Episodes without a score."),
    ),
    "evaluations with a call": (
        ("evaluation/well_formed_fraction", "share", "Calls that could be carried out."),
    ),
    "`evaluation.samples` above 1": (
        ("evaluation/pass_at_K", "share", "Tasks of which one of K samples succeeds."),
    ),
    "once, at the end": (
        ("summary/success_before", "share", "Success of the first evaluation."),
        ("summary/success_after", "share", "Success of the last one."),
        ("summary/training_seconds", "seconds", "Of training alone."),
        ("summary/parameters", "parameters", "Of the policy."),
    ),
})  # fmt: skip
"""What trackers are told beside them."""
PARTS = (
    "curriculum", "allocate", "start", "environment_wrapper", "dynamic_sampling", "stored", "reward",
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
