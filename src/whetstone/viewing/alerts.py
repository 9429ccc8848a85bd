"""Does a run go wrong, and how? Signs that are known, read from its metrics, each with what to look at and to try.

Every sign is a pure function of the rows of reinforcement. Early is the first fifth of the steps, late the last; a
change counts where it is more than three standard errors of the steps' own scatter, so that noise raises no alarm.

Easy to get wrong: a sign is no verdict. Entropy falls where a policy has learned, too, and groups without a difference
are many where all is solved; so each is asked for together with success that does not rise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance
from typing import Any

Row = Mapping[str, Any]
_FEWEST = 15
"""Steps, before which early and late tell nothing."""
_CLEAR = 3.0
_SOLVED = 0.9


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that was seen."""

    name: str
    said: str
    """With its numbers."""
    look: str
    """What to look at."""
    attempt: str
    """What to try."""
    keys: tuple[str, ...]
    """The curves it was read from."""
    step: int
    """The last step it was read from."""


def alerts_of(rows: Sequence[Row]) -> list[Alert]:
    """All that is to be seen in the rows of reinforcement, the gravest first; nothing in fewer than fifteen steps but
    failures."""
    return [alert for sign in SIGNS if (alert := sign(rows)) is not None]


def failing_episodes(rows: Sequence[Row]) -> Alert | None:
    """More than 5 % of the last ten steps' episodes have no score."""
    share = _mean(rows[-10:], "episode/invalid_fraction")
    if share is None or share <= 0.05:
        return None
    return _alert(
        rows,
        "failing episodes",
        f"{share:.0%} of the last episodes have no score: something beside the policy failed",
        "Trajectories that ended with error or infrastructure; each says its cause",
        "mend the tool, server or reward that is named there; nothing is learned from these episodes",
        "episode/invalid_fraction",
    )


def idle_updates(rows: Sequence[Row]) -> Alert | None:
    """At least half of the last ten updates changed nothing."""
    share = _mean(rows[-10:], "update/skipped_fraction")
    if share is None or share < 0.5:
        return None
    return _alert(
        rows,
        "idle updates",
        f"{share:.0%} of the last updates were skipped: their gradient was 0, or not finite",
        "update/nonfinite_fraction above 0: gradients overflowed; otherwise see groups without a difference",
        "where all groups are equal, easier or more tasks, or more samples of each; where numbers burst, a lower rate",
        "update/skipped_fraction",
        "update/nonfinite_fraction",
    )


def reward_hacking(rows: Sequence[Row]) -> Alert | None:
    """The reward rises clearly while success falls clearly."""
    reward, success = change(rows, "reward/mean"), change(rows, "episode/success")
    if reward is None or success is None or reward.clear < _CLEAR or success.clear > -_CLEAR:
        return None
    return _alert(
        rows,
        "reward hacking",
        f"the reward rose from {reward.early:.3g} to {reward.late:.3g} while success fell "
        f"from {success.early:.0%} to {success.late:.0%}",
        "Trajectories that are unsolved, highest reward first: what do they do for it?",
        "take the component away that is paid without the task being solved, or pay it only on success",
        "reward/mean",
        "episode/success",
    )


def falling_success(rows: Sequence[Row]) -> Alert | None:
    """Success falls clearly, and the reward does not rise."""
    reward, success = change(rows, "reward/mean"), change(rows, "episode/success")
    if success is None or success.clear > -_CLEAR or (reward is not None and reward.clear >= _CLEAR):
        return None
    return _alert(
        rows,
        "falling success",
        f"success fell from {success.early:.0%} to {success.late:.0%}",
        "policy/update_kl, the gradient norm and the step where it began",
        "a lower learning rate, a KL term to the reference policy, or the checkpoint in front of the fall",
        "episode/success",
    )


def entropy_collapse(rows: Sequence[Row]) -> Alert | None:
    """Entropy fell to a fifth or less, success is below 90 % and has not risen over the second half."""
    entropy = change(rows, "policy/entropy")
    if entropy is None or entropy.clear > -_CLEAR or entropy.late > entropy.early / 5 or _goes_well(rows):
        return None
    return _alert(
        rows,
        "entropy collapse",
        f"entropy fell from {entropy.early:.3g} to {entropy.late:.3g} nats a token, and success stands still",
        "one task across training: do its samples say the same, word for word?",
        "a higher clip_high, an entropy bonus, a higher temperature, or a lower learning rate",
        "policy/entropy",
        "episode/success",
    )


def zero_variance(rows: Sequence[Row]) -> Alert | None:
    """At least 80 % of the late groups have no difference, and they are not solved."""
    share = _late_mean(rows, "group/zero_variance_fraction")
    success = _late_mean(rows, "episode/success")
    if share is None or share < 0.8 or (success is not None and success >= _SOLVED):
        return None
    return _alert(
        rows,
        "groups without a difference",
        f"in {share:.0%} of the late groups all episodes earned the same: they teach nothing",
        "success by kind of task: which are never solved, which always?",
        "easier tasks first (curriculum), a longer warm-up, larger groups, or a reward with more than two values",
        "group/zero_variance_fraction",
    )


def length_drift(rows: Sequence[Row]) -> Alert | None:
    """Answers grow by half or shrink by a third, clearly, and success does not rise."""
    length, success = change(rows, "episode/action_tokens"), change(rows, "episode/success")
    if length is None or abs(length.clear) < _CLEAR or 2 / 3 < length.late / max(length.early, 1e-9) < 1.5:
        return None
    if success is not None and success.clear >= _CLEAR:
        return None
    way = "grew" if length.late > length.early else "shrank"
    return _alert(
        rows,
        "length drift",
        f"episodes {way} from {length.early:.0f} to {length.late:.0f} tokens, and success did not rise with it",
        "Trajectories by tokens: what are the longest made of? end_reason/max_tokens: are they cut?",
        "a loss that divides by one length for all (loss aggregation), a length penalty, or a look at what is paid",
        "episode/action_tokens",
        "episode/turns",
    )


def mismatch_growth(rows: Sequence[Row]) -> Alert | None:
    """Sampler and learner disagree by more than 0.001 (k3), and ten times as much as in the beginning."""
    mismatch = change(rows, "sampler/mismatch_kl")
    if mismatch is None or mismatch.late < 1e-3 or mismatch.late < 10 * mismatch.early:
        return None
    return _alert(
        rows,
        "growing mismatch",
        f"sampler and learner disagree: {mismatch.early:.2g} in the beginning, {mismatch.late:.2g} now (k3)",
        "sampler/mismatch_max, and whether engine and learner have the same precision and weights",
        "correction: truncated importance weights, the same dtype on both sides, or a fresher sampler",
        "sampler/mismatch_kl",
        "sampler/mismatch_max",
    )


def gradient_spikes(rows: Sequence[Row]) -> Alert | None:
    """In the last fifty steps a gradient of more than ten times the median of all."""
    norms = [(row["step"], row["update/grad_norm"]) for row in rows if _number(row, "update/grad_norm")]
    if len(norms) < _FEWEST:
        return None
    usual = median(norm for _, norm in norms)
    spikes = [(step, norm) for step, norm in norms[-50:] if norm > 10 * usual > 0]
    if not spikes:
        return None
    step, worst = max(spikes, key=lambda each: each[1])
    return _alert(
        rows,
        "gradient spikes",
        f"{len(spikes)} of the last {min(50, len(norms))} gradients are more than ten times the median "
        f"({usual:.3g}); the largest {worst:.3g} at step {step}",
        f"trajectories of step {step}: very long ones, very rare tokens",
        "a lower gradient limit, a lower learning rate, a longer ramp",
        "update/grad_norm",
    )


def starving_engine(rows: Sequence[Row]) -> Alert | None:
    """The engine is busy less than 30 % of the late sampling time, and sampling is most of a step."""
    late = rows[-_late(rows) :] if len(rows) >= _FEWEST else []
    generation, rollout, update = (_mean(late, f"time/{name}") for name in ("generation", "rollout", "update"))
    if generation is None or not rollout or rollout < (update or 0.0) or generation / rollout >= 0.3:
        return None
    return _alert(
        rows,
        "starving engine",
        f"the engine computes for {generation / rollout:.0%} of the sampling time and waits for tools otherwise",
        "Tools: which is slow? Timeline: how many episodes are under way at once?",
        "more episodes at once, sampling ahead (admit_ahead), faster or more tool workers",
        "time/generation",
        "time/rollout",
    )


SIGNS: tuple[Callable[[Sequence[Row]], Alert | None], ...] = (
    failing_episodes,
    idle_updates,
    reward_hacking,
    falling_success,
    entropy_collapse,
    zero_variance,
    mismatch_growth,
    gradient_spikes,
    length_drift,
    starving_engine,
)


@dataclass(frozen=True, slots=True)
class Change:
    """A number early and late."""

    early: float
    late: float
    clear: float
    """The difference in its standard errors; infinite where there is no scatter at all and a difference."""


def change(rows: Sequence[Row], key: str) -> Change | None:
    """How a number changed from the first fifth of the steps to the last; None where there are fewer than 15.

    clear = (mean late − mean early) / √(var early / n + var late / n)
    """
    values = [row[key] for row in rows if _number(row, key)]
    if len(values) < _FEWEST:
        return None
    n = _late(values)
    early, late = values[:n], values[-n:]
    difference = fmean(late) - fmean(early)
    error = math.sqrt((variance(early) + variance(late)) / n)
    clear = difference / error if error > 0 else math.copysign(math.inf, difference) if difference else 0.0
    return Change(fmean(early), fmean(late), clear)


def _goes_well(rows: Sequence[Row]) -> bool:
    """Whether most is solved, or success still rises over the second half."""
    success = _late_mean(rows, "episode/success")
    rising = change(rows[len(rows) // 2 :], "episode/success") if len(rows) >= 2 * _FEWEST else None
    return (success is not None and success >= _SOLVED) or (rising is not None and rising.clear >= _CLEAR)


def _late(values: Sequence[Any]) -> int:
    return max(3, len(values) // 5)


def _late_mean(rows: Sequence[Row], key: str) -> float | None:
    return _mean(rows[-_late(rows) :], key) if len(rows) >= _FEWEST else None


def _mean(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if _number(row, key)]
    return fmean(values) if values else None


def _number(row: Row, key: str) -> bool:
    value = row.get(key)
    return isinstance(value, int | float) and math.isfinite(value)


def _alert(rows: Sequence[Row], name: str, said: str, look: str, attempt: str, *keys: str) -> Alert:
    return Alert(name, said, look, attempt, keys, int(rows[-1]["step"]))
