"""Alarms: signs in the metrics of reinforcement that a run goes wrong, each with its cause and a remedy.

An alarm is a pure function of the rows so far, listed in `ALARMS`. The run evaluates the list after each step, logs an
alarm when it is raised, shows it in the panel and stores `alarm/NAME` in the row of the step. `whetstone why`,
`whetstone show`, the viewer and the report evaluate the same list over the same rows.

Note:
    An alarm is a hint and not a result. Entropy also falls when a policy has learned, and all groups are equal when all
    tasks are solved, so these alarms depend on success too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from whetstone.reporting.change_detection import (
    MIN_STEPS,
    SUCCESS,
    MetricChange,
    Row,
    find_change,
    is_number,
    read_values,
)
from whetstone.tool_calls import find_cut_results, find_failing_tools

MISMATCH_LIMITS = {"float32": 1e-4, "float16": 1e-3, "bfloat16": 1e-2}
"""Maximum `sampler/mismatch_kl` (nats per token, k3) by precision of the sampler. Rounding of SmolLM2-135M in bfloat16
gives about 1e-3; the error of a log-prob is proportional to the precision, and k3 to its square."""
_MIN_FALL = 0.05
_SOLVED, _UNSOLVED = 0.9, 0.1
_IN_A_ROW = 3
_MAX_ABOVE = 0.1


@dataclass(frozen=True, slots=True)
class Alarm:
    """Sign in the metrics that a run goes wrong, with its cause and a remedy."""

    name: str
    """Name of the alarm function, such as `entropy_collapse`."""
    message: str
    """The sign with its numbers."""
    check: str
    """Where to look."""
    remedy: str
    """What to change."""
    keys: tuple[str, ...]
    """Metrics from which it was read."""
    step: int
    """Last step from which it was read."""

    @property
    def line(self) -> str:
        """Return the alarm as one line: name, message, and remedy."""
        return f"{self.name}: {self.message}; try: {self.remedy}"

    @property
    def metric_name(self) -> str:
        """Return the metric `alarm/NAME`, which stores the alarm in the row of its step."""
        return f"alarm/{self.name.replace(' ', '_')}"


def find_alarms(rows: Sequence[Row]) -> list[Alarm]:
    """Return the alarms that are raised after the last of these rows, in the order of `ALARMS`.

    Args:
        rows: Rows of `metrics.jsonl`. The last reinforcement stage is considered; without one, the last stage that
            samples, whose rewards are not trained on.
    """
    rows = select_rows(rows)
    is_trained_on = bool(rows) and rows[-1]["stage"] == "reinforcement"
    functions = ALARMS if is_trained_on else ALARMS_OF_SAMPLING
    return [alarm for find in functions if rows and (alarm := find(rows)) is not None]


def select_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows of the last reinforcement stage, or else of the last stage that samples."""
    for wanted in (("reinforcement",), ("distillation", "sampling")):
        end = next((k for k in range(len(rows), 0, -1) if rows[k - 1].get("stage") in wanted), 0)
        start = end
        while start and rows[start - 1].get("stage") == rows[end - 1]["stage"]:
            if start < end and rows[start - 1]["step"] >= rows[start]["step"]:
                break  # an earlier stage of the same kind
            start -= 1
        if end:
            return rows[start:end]
    return []


def stored_alarms(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Return the alarms that are stored in the rows of a run: name → (first step, last step)."""
    steps: dict[str, tuple[int, int]] = {}
    for row in select_rows(rows):
        for key in row:
            if key.startswith("alarm/"):
                name, step = key.removeprefix("alarm/").replace("_", " "), int(row["step"])
                steps[name] = (steps.get(name, (step, step))[0], step)
    return steps


def mismatch_limit(dtype: object, *, engine: str = "local") -> float:
    """Return the maximum KL divergence between sampler and learner that rounding explains, in nats per token (k3).

    Args:
        dtype: Precision of the policy, such as `torch.bfloat16`; the local engine samples in it.
        engine: Name of the engine. The precision of a server is unknown, so its limit is that of bfloat16.
    """
    precision = str(dtype).removeprefix("torch.") if engine == "local" else ""
    return MISMATCH_LIMITS.get(precision, MISMATCH_LIMITS["bfloat16"])


def failing_tools(rows: Sequence[Row]) -> Alarm | None:
    """A tool failed in at least half of the calls of the last step that called tools, five calls or more."""
    signs = find_failing_tools(rows)
    return _alarm(rows, *signs) if signs else None


def cut_results(rows: Sequence[Row]) -> Alarm | None:
    """At least half of the results of a tool were cut in the last step that called tools, five calls or more."""
    signs = find_cut_results(rows)
    return _alarm(rows, *signs) if signs else None


def constant_reward(rows: Sequence[Row]) -> Alarm | None:
    """All episodes since the first step have the same reward, two steps or more."""
    lows, highs = read_values(rows, "episode/reward_min"), read_values(rows, "episode/reward_max")
    if min(len(lows), len(highs)) < 2 or min(lows) != max(highs):
        return None
    return _alarm(
        rows,
        "constant reward",
        f"every episode of the first {len(rows)} steps has the reward {lows[0]:g}, so nothing can be learned: the "
        "reward function returns a constant, or no episode differs from another",
        "`whetstone why RUN --step 1` lists the episodes with their rewards",
        "`whetstone rewards audit RECIPE` tries the reward on right and wrong answers; if it is right, partial reward, "
        "easier or harder tasks, demonstrations (supervised)",
        "reward/mean",
        "episode/reward_min",
        "episode/reward_max",
    )


def novelty_above_reward(rows: Sequence[Row]) -> Alarm | None:
    """More than 10 % of the episodes of the last step have a novelty bonus above the outcome of a solved task."""
    values = read_values(rows[-1:], "reward/novelty_above_outcome")
    if not values or values[0] <= _MAX_ABOVE:
        return None
    return _alarm(
        rows,
        "novelty above reward",
        f"the novelty bonus of {values[0]:.0%} of the episodes is larger than the outcome of a solved task",
        "`reward/novelty_bonus` is the mean bonus per episode",
        "a lower `reward.weight`, or `alternate_steps`",
        "reward/novelty_above_outcome",
    )


def equal_groups(rows: Sequence[Row]) -> Alarm | None:
    """All groups of three steps in a row are equal, or 80 % of the groups of the last ten."""
    key = "group/zero_variance_fraction"
    recent, late = read_values(rows[-_IN_A_ROW:], key), read_values(rows[-10:], key)
    if len(recent) == _IN_A_ROW and min(recent) == 1:
        steps, groups = _IN_A_ROW, "all groups"
    elif len(late) == 10 and fmean(late) >= 0.8:
        steps, groups = 10, f"{fmean(late):.0%} of the groups"
    else:
        return None
    success = _mean(rows[-steps:], SUCCESS)
    if success is not None and success >= _SOLVED and steps > _IN_A_ROW:
        return None  # most tasks are solved, and the others still teach
    seen = f"in {groups} of the last {steps} steps all episodes have the same reward, so they give no advantage"
    if success is not None and success >= _SOLVED:
        return _alarm(
            rows,
            "all groups correct",
            f"{seen}; success is {success:.0%}: the tasks are solved",
            "success on held-out tasks, by kind of task",
            "harder tasks, or end the stage (reinforcement.until): nothing is left to learn here",
            key,
            SUCCESS,
        )
    peak = max(read_values(rows, SUCCESS), default=0.0)
    if success is not None and success <= _UNSOLVED and peak >= 2 * _UNSOLVED:
        lost = next(row["step"] for row in rows if row.get(SUCCESS) == peak)
        return _alarm(
            rows,
            "all groups wrong",
            f"{seen}; success is {success:.0%}, and was {peak:.0%} at step {lost}: updates destroyed the policy",
            "policy/update_kl, policy/entropy and update/relative_norm since that step",
            f"a checkpoint before step {lost + 1} with a lower learning rate, more episodes per step "
            "(reinforcement.tasks_per_step, rollout.group_size), reinforcement.reference_kl",
            key,
            SUCCESS,
        )
    if success is not None and success <= _UNSOLVED:
        return _alarm(
            rows,
            "all groups wrong",
            f"{seen}; success is {success:.0%}: no sample shows how a task is solved",
            "`whetstone why RUN --step N` lists the episodes of a step; look at their answers and tool errors",
            "easier tasks first (curriculum), demonstrations (supervised), partial reward, larger groups",
            key,
            SUCCESS,
        )
    return _alarm(
        rows,
        "all groups equal",
        f"{seen}; each task is either always solved or never",
        "success by kind of task, for kinds that are never or always solved",
        "larger groups (rollout.group_size), tasks of medium difficulty (rollout.dynamic_sampling), a higher "
        "rollout.temperature, partial reward",
        key,
        SUCCESS,
    )


def failing_episodes(rows: Sequence[Row]) -> Alarm | None:
    """More than 5 % of the last ten steps' episodes have no score; three steps or more."""
    fractions = read_values(rows[-10:], "episode/invalid_fraction")
    if len(fractions) < _IN_A_ROW or fmean(fractions) <= 0.05:
        return None
    return _alarm(
        rows,
        "failing episodes",
        f"{fmean(fractions):.0%} of the last episodes have no score: a component other than the policy failed",
        "trajectories that ended with error or infrastructure; each has its cause",
        "repair the tool, server or reward that the cause names; these episodes train nothing",
        "episode/invalid_fraction",
    )


def full_contexts(rows: Sequence[Row]) -> Alarm | None:
    """More than 10 % of the episodes of the last five steps ended because the context was full; three or more."""
    recent = [row for row in rows[-5:] if is_number(row, "episode/invalid_fraction")]
    fraction = sum(read_values(recent, "end_reason/context_full")) / max(1, len(recent))  # 0 is not stored
    if len(recent) < _IN_A_ROW or fraction <= 0.1:
        return None
    return _alarm(
        rows,
        "full contexts",
        f"{fraction:.0%} of the last episodes ended because the context of the model is full",
        "trajectories by tokens, for long results of tools and many turns",
        "a longer context of the model, rollout.context_rewrites, shorter results of tools, fewer turns "
        "(environment.max_turns) or tokens per turn (rollout.max_new_tokens)",
        "end_reason/context_full",
        "episode/action_tokens",
    )


def reward_hacking(rows: Sequence[Row]) -> Alarm | None:
    """The reward rises clearly while success falls clearly."""
    reward, success = find_change(rows, "reward/mean", 1), _falling(rows)
    if reward is None or success is None:
        return None
    return _alarm(
        rows,
        "reward hacking",
        f"the reward rose {reward.describe('{:.3g}')} while success fell {success.describe('{:.0%}')}",
        "trajectories that are not solved, highest reward first",
        "remove the component that pays without a solution, or pay it only on success",
        "reward/mean",
        SUCCESS,
    )


def falling_success(rows: Sequence[Row]) -> Alarm | None:
    """Success falls clearly below its first steps, by 5 points or more, and the reward does not rise."""
    success = _falling(rows)
    if success is None or find_change(rows, "reward/mean", 1) is not None:
        return None
    chosen = any(key.startswith("curriculum/") for key in rows[-1])
    return _alarm(
        rows,
        "falling success",
        f"success of sampled episodes fell {success.describe('{:.0%}')}",
        "success by kind of task: the curriculum may choose harder tasks"
        if chosen
        else "policy/update_kl, policy/entropy, the gradient norm, and the step at which it started",
        "a lower learning rate, more episodes per step (reinforcement.tasks_per_step, rollout.group_size), "
        "reinforcement.reference_kl, or a checkpoint before the fall",
        SUCCESS,
        "policy/entropy",
        "policy/update_kl",
    )


def entropy_collapse(rows: Sequence[Row]) -> Alarm | None:
    """Entropy fell clearly to a fifth or less, success is below 90 % and has not risen over the second half."""
    entropy = find_change(rows, "policy/entropy", -1)
    if entropy is None or entropy.late > entropy.early / 5 or _improves(rows):
        return None
    return _alarm(
        rows,
        "entropy collapse",
        f"entropy fell {entropy.describe('{:.3g}')} nats per token, and success does not rise: the policy no longer "
        "explores",
        "one task across training, for identical samples",
        "a higher clip_high, an entropy bonus (reinforcement.entropy), a higher temperature, or a lower learning rate",
        "policy/entropy",
        SUCCESS,
    )


def rising_entropy(rows: Sequence[Row]) -> Alarm | None:
    """Entropy rose clearly, by half and by 0.05 nats or more, success is below 90 % and has not risen."""
    entropy = find_change(rows, "policy/entropy", 1, minimum=0.05)
    if entropy is None or entropy.late < 1.5 * entropy.early or _improves(rows):
        return None
    return _alarm(
        rows,
        "rising entropy",
        f"entropy rose {entropy.describe('{:.3g}')} nats per token, and success does not rise: updates amplify noise",
        "update/grad_norm and update/relative_norm, which measure how far a step moves the weights",
        "a lower learning rate, more episodes per step (reinforcement.tasks_per_step, rollout.group_size), "
        "reinforcement.reference_kl, a lower weight of reinforcement.entropy",
        "policy/entropy",
        SUCCESS,
    )


def sampler_mismatch(rows: Sequence[Row]) -> Alarm | None:
    """Sampler and learner disagree by more than `mismatch_limit`, in the median of the last three steps."""
    key = "sampler/mismatch_kl"
    recent = read_values(rows[-_IN_A_ROW:], key)
    limit = (read_values(rows[-1:], "sampler/mismatch_limit") or [mismatch_limit("")])[0]
    if not recent or median(recent) <= limit:
        return None
    return _alarm(
        rows,
        "sampler mismatch",
        f"sampler and learner disagree by {median(recent):.2g} nats per token on the same tokens "
        f"(sampler/mismatch_kl), more than rounding explains at the precision of the sampler ({limit:.0e})",
        "`whetstone doctor RECIPE` compares the two; sampler/mismatch_max",
        "the same weights, template, temperature and policy.dtype on both sides; importance_correction: truncated; the "
        "run stops above reinforcement.max_mismatch_kl",
        key,
        "sampler/mismatch_max",
    )


def idle_updates(rows: Sequence[Row]) -> Alarm | None:
    """At least half of the last ten updates changed nothing although groups differed; three or more updates."""
    equal = "group/zero_variance_fraction"
    recent = [row for row in rows[-10:] if is_number(row, "update/skipped_fraction")]
    skipped = [0.0 if row.get(equal) == 1 else float(row["update/skipped_fraction"]) for row in recent]
    if len(skipped) < _IN_A_ROW or fmean(skipped) < 0.5:
        return None
    return _alarm(
        rows,
        "idle updates",
        f"{fmean(skipped):.0%} of the last updates were skipped: their gradient was 0, or not finite",
        "update/nonfinite_fraction above 0: gradients overflowed; otherwise the credit is 0",
        "if gradients overflow, a lower learning rate or policy.dtype: float32; otherwise more samples per task",
        "update/skipped_fraction",
        "update/nonfinite_fraction",
    )


def gradient_spikes(rows: Sequence[Row]) -> Alarm | None:
    """One of the last fifty gradients is more than ten times the median of all."""
    norms = [(row["step"], row["update/grad_norm"]) for row in rows if is_number(row, "update/grad_norm")]
    if len(norms) < MIN_STEPS:
        return None
    usual = median(norm for _, norm in norms)
    spikes = [(step, norm) for step, norm in norms[-50:] if norm > 10 * usual > 0]
    if not spikes:
        return None
    step, worst = max(spikes, key=lambda spike: spike[1])
    return _alarm(
        rows,
        "gradient spikes",
        f"{len(spikes)} of the last {min(50, len(norms))} gradients are more than ten times the median "
        f"({usual:.3g}); the largest is {worst:.3g} at step {step}",
        f"trajectories of step {step}: very long ones, very rare tokens",
        "a lower reinforcement.max_grad_norm, a lower learning rate, a longer warm-up of the learning rate",
        "update/grad_norm",
    )


def length_drift(rows: Sequence[Row]) -> Alarm | None:
    """Episodes grow by half or shrink by a third, clearly, and success does not rise."""
    key = "episode/action_tokens"
    longer, shorter = find_change(rows, key, 1), find_change(rows, key, -1)
    grown = longer if longer is not None and longer.late >= 1.5 * longer.early else None
    length = grown or (shorter if shorter is not None and shorter.late <= shorter.early * 2 / 3 else None)
    if length is None or find_change(rows, SUCCESS, 1) is not None:
        return None
    return _alarm(
        rows,
        "length drift",
        f"episodes {'grew' if grown else 'shrank'} {length.describe('{:.0f}')} tokens, and success does not rise",
        "trajectories by tokens, and end_reason/max_tokens for episodes that are cut",
        "aggregation: token_mean, a length penalty (reward_shaping), or a look at the components of the reward",
        key,
        "episode/turns",
    )


def starving_engine(rows: Sequence[Row]) -> Alarm | None:
    """The engine is busy less than 30 % of the late sampling time, and sampling is most of a step."""
    late = rows[-max(3, len(rows) // 5) :] if len(rows) >= MIN_STEPS else []
    generation, rollout, update = (_mean(late, f"time/{name}") for name in ("generation", "rollout", "update"))
    if generation is None or not rollout or rollout < (update or 0.0) or generation / rollout >= 0.3:
        return None
    return _alarm(
        rows,
        "starving engine",
        f"the engine computes for {generation / rollout:.0%} of the sampling time and waits for tools otherwise",
        "`whetstone why RUN --slow` reports the slowest tools and the bottleneck",
        "more episodes at once (rollout.max_in_flight), reinforcement.admit_ahead, faster or more tool workers",
        "time/generation",
        "time/rollout",
    )


ALARMS: tuple[Callable[[Sequence[Row]], Alarm | None], ...] = (
    failing_tools,
    failing_episodes,
    constant_reward,
    novelty_above_reward,
    equal_groups,
    falling_success,
    reward_hacking,
    rising_entropy,
    entropy_collapse,
    full_contexts,
    cut_results,
    sampler_mismatch,
    idle_updates,
    gradient_spikes,
    length_drift,
    starving_engine,
)
"""All alarms, causes before their effects. To add one, write a function of the rows and list it here."""
ALARMS_OF_SAMPLING = (failing_tools, failing_episodes, full_contexts, cut_results, sampler_mismatch)
"""Alarms of stages that sample and do not train on rewards."""


def _falling(rows: Sequence[Row]) -> MetricChange | None:
    return find_change(rows, SUCCESS, -1, minimum=_MIN_FALL)


def _improves(rows: Sequence[Row]) -> bool:
    """Whether most tasks are solved, or success still rises over the second half."""
    success = _mean(rows[-max(3, len(rows) // 5) :], SUCCESS)
    half = rows[len(rows) // 2 :] if len(rows) >= 2 * MIN_STEPS else rows
    return (success is not None and success >= _SOLVED) or find_change(half, SUCCESS, 1) is not None


def _mean(rows: Sequence[Row], key: str) -> float | None:
    values = read_values(rows, key)
    return fmean(values) if values else None


def _alarm(rows: Sequence[Row], name: str, message: str, check: str, remedy: str, *keys: str) -> Alarm:
    return Alarm(name, message, check, remedy, keys, int(rows[-1]["step"]))
