"""How do the groups of a step become updates? Credit, and one update a minibatch and epoch, with all it asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from whetstone.algorithms import TokenLoss, columns_of, level_of, mismatch, token_weights
from whetstone.algorithms.schedules import mixing_weight, phase_weight
from whetstone.errors import CreditError, MismatchError
from whetstone.policies import Critic
from whetstone.recipe import ImitationSettings, Recipe, TrainingSettings
from whetstone.seeding import derive_seed
from whetstone.training.assembly import Assembly
from whetstone.training.columns import Columns
from whetstone.training.credit import Credited, Given, give_credit
from whetstone.training.held import Held, held_of
from whetstone.training.learner import Learner, action_places, action_tokens
from whetstone.training.losses import OF_A_PASS, UpdateLoss
from whetstone.training.sums import OF_SUMS, coefficients, sums_of
from whetstone.trajectory import Author, Group, OffPolicy, Segment

_OF_AN_UPDATE = ("loss", "update/", "throughput/", "memory/")
"""What is one number an update; all else is a mean over its tokens."""
_NOTHING_WITHOUT_CREDIT = {"clipped", "cispo", "entropy_balanced", "gmpo", "gspo", "policy_gradient", "sapo"}
"""Objectives whose loss and gradient are exactly 0 where the advantage is."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What came of learning from a step's groups."""

    metrics: dict[str, float]
    advantages: Mapping[str, float]
    """By trajectory, the mean size of its advantages before anything was masked."""


def learn_from(
    assembly: Assembly,
    learner: Learner,
    groups: Sequence[Group],
    shown: Sequence[Segment],
    settings: TrainingSettings,
    *,
    version: int | None = None,
) -> Learned:
    """One update per minibatch and epoch, each with its share of the groups.

    Args:
        shown: Demonstrations to imitate in the same updates.
        version: Of the weights there are. Tokens drawn under it tell how far sampler and learner disagree, older ones
            how far the policy has moved since; None: all are of this one.
    """
    recipe, critic = assembly.resolved.recipe, assembly.policy.critic
    held, columns_of_batch = held_of(groups), partial(batch_columns, assembly, learner)
    temperature, step = recipe.rollout.temperature, learner.optimizers.done
    warming = recipe.critic is not None and step < recipe.critic.warm_up

    def credit() -> tuple[Given, list[_Batch]]:
        given = give_credit(assembly.credit, held, len(groups), columns_of_batch)
        return given, _batches(assembly, learner, given, shown, settings)

    given, batches = credit()
    for _ in range(recipe.critic.epochs - 1 if recipe.critic is not None else 0):
        for batch in batches:
            loss = batch.loss(recipe, settings, learner, first=True, critic_only=True)
            learner.update(batch.segments, loss, temperature=temperature, divisor=batch.divisor, critic_only=True)
            _follow(critic, recipe)
        given, batches = credit()
    metrics = dict(given.metrics)
    if learner.process is not None:
        metrics |= learner.process.learn(given.columns)
    reports: list[tuple[int, dict[str, float]]] = []
    entropies: dict[int, tuple[float, int]] = {}
    for epoch in range(settings.epochs):
        for i, batch in enumerate(batches):
            loss = batch.loss(recipe, settings, learner, first=epoch == i == 0, critic_only=warming)
            loss.correction = assembly.correction
            loss.usual_entropies = learner.entropies.usual()
            said: dict[str, float] = {}
            if warming:
                pass
            elif sums_level(assembly.objective) is not None:
                said = _of_sums(assembly, learner, given, batch, loss)
            else:
                loss.objective = assembly.objective
                if _spans_passes(assembly, batch):
                    show = partial(learner.show, batch.segments, temperature=temperature)
                    loss.whole = loss.over_whole_batch(batch.segments, show)
            update = learner.update(
                batch.segments,
                loss,
                temperature=temperature,
                divisor=batch.divisor,
                flat=batch.flat,
                critic_only=warming,
                agreed=partial(_agree, batches, loss, version, settings) if epoch == i == 0 else _no_question,
            )
            _follow(critic, recipe)
            for turn, (total, count) in loss.entropy_by_turn.items():
                before = entropies.get(turn, (0.0, 0))
                entropies[turn] = (before[0] + total, before[1] + count)
            reports.append((batch.own_tokens, update | said))
    if entropies:
        learner.entropies.add(entropies)
    metrics |= _over_updates(reports) | _disagreement(batches, version)
    squared = metrics.pop("correction/weight_squared", 0.0)
    if squared > 0:  # (Σw)² / (n Σw²): 1 where all count alike
        metrics["correction/effective_fraction"] = metrics["correction/weight"] ** 2 / squared
    return Learned(metrics, given.sizes)


def _over_updates(reports: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """What the updates of a step came to: means over the policy's tokens, or over updates where a number is of one.

    Args:
        reports: (tokens of the policy, metrics) of each.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(chain.from_iterable(report for _, report in reports)):
        said = [(tokens, report[name]) for tokens, report in reports if name in report]
        weights = [0 if name.startswith(_OF_AN_UPDATE) else tokens for tokens, _ in said]
        values = [value for _, value in said]
        found[name] = fmean(values, weights) if any(weights) else fmean(values)
    return found


def _disagreement(batches: Sequence[_Batch], version: int | None) -> dict[str, float]:
    """Of sampler and learner on all tokens of a step that the present weights drew behind what is trained, before any
    of its updates; and how far tokens of older weights, or behind something else, lie from them."""
    ours, theirs, fresh = [], [], []
    for batch in batches:
        of_others = chain(batch.of_others, repeat(False))
        for segment, found, other in zip(batch.segments, batch.before, of_others, strict=False):
            places = action_places(segment)
            drawn = torch.tensor([segment.tokens.logprobs[place] for place in places], dtype=torch.float64)
            spliced = torch.tensor([segment.tokens.authors[place] is Author.SPLICED for place in places])
            known = ~drawn.isnan() & ~spliced.bool()
            of = torch.tensor([segment.tokens.versions[place] for place in places], dtype=torch.long)
            now = torch.ones_like(of, dtype=torch.bool) if version is None else of == version
            ours.append(found.double().cpu()[known])
            theirs.append(drawn[known])
            fresh.append((now & (not other))[known])
    if not sum(map(len, ours)):
        return {}
    learner_side, sampler_side, now = torch.cat(ours), torch.cat(theirs), torch.cat(fresh)
    metrics = mismatch(learner_side[now], sampler_side[now]) if now.any() else {}
    if not now.all():
        metrics["policy/staleness_kl"] = mismatch(learner_side[~now], sampler_side[~now])["sampler/mismatch_kl"]
    return metrics


def _agree(batches: Sequence[_Batch], loss: UpdateLoss, version: int | None, settings: TrainingSettings) -> None:
    """See that sampler and learner agree, when the first pass of a step has found what tokens are worth.

    Raises:
        MismatchError: They do not.
    """
    batches[0].before = list(loss.old)
    found = _disagreement(batches, version).get("sampler/mismatch_kl", 0.0)
    if found > settings.max_mismatch:
        raise MismatchError(
            f"sampler and learner disagree by {found:.3g} nats a token on the tokens that were just sampled "
            f"(sampler/mismatch_kl), more than training.max_mismatch ({settings.max_mismatch:g}): they do not have the "
            "same weights, arithmetic, template or temperature, and what is learned from such ratios is noise. "
            "`whetstone doctor RECIPE` compares the two"
        )


def _no_question() -> None:
    """Only the first update of a step is of the weights that sampled."""


def _spans_passes(assembly: Assembly, batch: _Batch) -> bool:
    """Whether something is one number for a trajectory whose segments may lie in different passes."""
    return _reads_sequences(assembly) and len({s.trajectory_id for s in batch.segments}) < len(batch.segments)


def _reads_sequences(assembly: Assembly) -> bool:
    functions = [assembly.objective, *([assembly.correction] if assembly.correction is not None else [])]
    return any("sequence" in columns_of(function) for function in functions)


def batch_columns(assembly: Assembly, learner: Learner | None, held: Sequence[Held]) -> Columns:
    """The columns of trajectories in this run."""
    recipe = assembly.resolved.recipe
    step = learner.optimizers.done if learner is not None else 0
    return Columns(
        held,
        learner=learner,
        scorer=learner.process.learner if learner is not None and learner.process is not None else None,
        temperature=recipe.rollout.temperature,
        chat=assembly.chat,
        roles=recipe.roles,
        draw=torch.Generator().manual_seed(derive_seed(recipe.seed, "columns", step) % 2**63),
    )


def _follow(critic: Critic | None, recipe: Recipe) -> None:
    if critic is not None and recipe.critic is not None:
        critic.follow(recipe.critic.slow_rate)


def sums_level(objective: Callable[..., Any]) -> Any:
    """Of what an objective compares sums of log-probs, trajectories or turns; None where it is one of tokens."""
    return level_of(objective, "learner_sums") if "learner_sums" in columns_of(objective) else None


def _batches(
    assembly: Assembly, learner: Learner, given: Given, shown: Sequence[Segment], settings: TrainingSettings
) -> list[_Batch]:
    recipe, count = assembly.resolved.recipe, settings.minibatches
    temperature = recipe.rollout.temperature
    asked = set(columns_of(assembly.objective))
    shares = [[each for group in given.by_group[i::count] for each in group] for i in range(count)]
    batches = []
    for i, share in enumerate(shares):
        lengths = _lengths(share)
        divisor = int(sum(lengths.values()))
        weights = _weights(recipe, lengths, divisor)
        batch = _Batch.of(share, shown[i::count], weights)
        if _flat_without_credit(assembly, settings):
            by_trajectory = _reads_sequences(assembly)
            credit = {each.segment.trajectory_id for each in share if any(each.segment.advantages or ())}
            batch.flat = {
                k
                for k, each in enumerate(share)
                if not any(each.segment.advantages or ())
                and not (by_trajectory and each.segment.trajectory_id in credit)
            }
        batch.divisor = divisor or sum(map(action_tokens, batch.segments))
        batches.append(batch)
    for i, batch in enumerate(batches):
        if i > 0 or sums_level(assembly.objective) is not None:
            # the first update's old policy is the one being differentiated: the pass itself finds its log-probs
            batch.old, batch.old_known = learner.logprobs(batch.segments, temperature=temperature), True
            batch.before = batch.old
        if settings.reference_kl > 0 or asked & {"reference_logprobs", "reference_sums"}:
            batch.reference = learner.logprobs(batch.segments, temperature=temperature, of="reference")
            batch.extra["reference_logprobs"] = batch.reference
        if "teacher_logprobs" in asked:
            batch.extra["teacher_logprobs"] = learner.logprobs(batch.segments, temperature=temperature, of="teacher")
        of = [given.columns.held[i].trajectory for i, _ in batch.placed]
        batch.of_others = [trajectory.off_policy is not OffPolicy.RECOMPUTE for trajectory in of]
        batch.kept = _kept(given, batch)
        if batch.kept is not None and batch.old_known:
            drawn = batch.column(given, "sampler_logprobs")
            batch.old = [
                torch.where(k.to(o.device), d.to(o), o) for k, d, o in zip(batch.kept, drawn, batch.old, strict=True)
            ]
        for name in asked - OF_A_PASS - batch.extra.keys() - OF_SUMS:
            batch.extra[name] = batch.column(given, name)
    return batches


def _kept(given: Given, batch: _Batch) -> list[Tensor] | None:
    """[A] of each segment, where ratios compare with the log-probs kept when tokens were drawn; None: nowhere.

    Raises:
        CreditError: They are to, and there are none.
    """
    found = []
    for (i, _), segment in zip(batch.placed, batch.segments, strict=False):
        trajectory = given.columns.held[i].trajectory
        places = action_places(segment)
        spliced = [segment.tokens.authors[place] is Author.SPLICED for place in places]
        kept = [True] * len(places) if trajectory.off_policy.kept else spliced
        if any(k and math.isnan(segment.tokens.logprobs[place]) for k, place in zip(kept, places, strict=True)):
            raise CreditError(
                f"{trajectory.id}: off_policy {trajectory.off_policy} compares with log-probs from when tokens were "
                "drawn, and it has none; use off_policy: recompute for it"
            )
        found.append(torch.tensor(kept, dtype=torch.bool))
    if not any(bool(each.any()) for each in found):
        return None
    rest = batch.segments[len(found) :]
    return [*found, *(torch.zeros(action_tokens(segment), dtype=torch.bool) for segment in rest)]


def _flat_without_credit(assembly: Assembly, settings: TrainingSettings) -> bool:
    """Whether what has no credit has no gradient either."""
    recipe = assembly.resolved.recipe
    beside = settings.reference_kl > 0 or settings.entropy is not None or recipe.critic is not None
    return not beside and recipe.objective.name in _NOTHING_WITHOUT_CREDIT


def _lengths(share: Sequence[Credited]) -> dict[str, int]:
    """Action tokens of each trajectory."""
    found: dict[str, int] = {}
    for each in share:
        name = each.segment.trajectory_id
        found[name] = found.get(name, 0) + action_tokens(each.segment)
    return found


def _weights(recipe: Recipe, lengths: Mapping[str, int], divisor: int) -> dict[str, float] | None:
    """What a token of each trajectory is multiplied by, beside being divided by the divisor; None: by 1."""
    settings = recipe.aggregation
    if settings.mode == "token_mean":
        return None
    said = token_weights(torch.tensor(list(lengths.values())), settings.mode, constant=settings.tokens)
    return dict(zip(lengths, (said * divisor).tolist(), strict=True))


def _of_sums(assembly: Assembly, learner: Learner, given: Given, batch: _Batch, loss: UpdateLoss) -> dict[str, float]:
    """Make an objective on sums one on tokens, at the present weights. Returns what to report."""
    now = learner.logprobs(batch.segments, temperature=assembly.resolved.recipe.rollout.temperature)
    count = len(batch.placed)
    logprobs = {"learner": now[:count], "old": batch.old[:count]}
    if batch.reference is not None:
        logprobs["reference"] = batch.reference[:count]
    level = sums_level(assembly.objective)
    per_token, value, metrics = coefficients(assembly.objective, sums_of(given.columns, batch.placed, level), logprobs)
    nothing = [torch.zeros(len(old)) for old in batch.old[count:]]
    of_each = value * batch.divisor / max(1, sum(map(len, per_token)))
    shares = [torch.full((len(of),), of_each) for of in per_token]
    loss.extra = {
        **loss.extra,
        "coefficients": [*(of * batch.divisor for of in per_token), *nothing],
        "shares": [*shares, *nothing],
    }
    loss.objective = _by_coefficients
    return metrics


def _nothing(learner_logprobs: Tensor) -> TokenLoss:
    return TokenLoss(0.0 * learner_logprobs, {})


def _by_coefficients(learner_logprobs: Tensor, coefficients: Tensor, shares: Tensor) -> TokenLoss:
    """A loss of sums at its tokens: in value an equal share each, in gradient what each sum is pushed by."""
    return TokenLoss(shares + coefficients * (learner_logprobs - learner_logprobs.detach()), {})


@dataclass(slots=True)
class _Batch:
    """What one update learns from; lists are per segment."""

    segments: list[Segment]
    credited: list[Credited]
    """Of the policy's own segments, which stand first."""
    old: list[Tensor]
    weights: list[float] | None
    placed: list[tuple[int, int]]
    """Of the policy's own: (number of the trajectory, number of the segment there)."""
    old_known: bool = False
    """Whether the log-probs before the step were computed by a pass of their own."""
    reference: list[Tensor] | None = None
    kept: list[Tensor] | None = None
    extra: dict[str, list[Tensor]] = field(default_factory=dict)
    divisor: int = 1
    """Tokens the loss is divided by."""
    flat: Collection[int] = ()
    """Segments whose loss has no gradient: they are only computed for what is reported."""
    of_others: Sequence[bool] = ()
    """Of the policy's own: whether it was drawn earlier, or under another view."""
    before: list[Tensor] = field(default_factory=list)
    """Log-probs before any update of the step, whatever ratios compare with."""

    @classmethod
    def of(cls, share: Sequence[Credited], shown: Sequence[Segment], weights: Mapping[str, float] | None) -> _Batch:
        """The policy's own segments, then demonstrations."""
        segments = [*(each.segment for each in share), *shown]
        of_each = None if weights is None else [weights.get(s.trajectory_id, 1.0) for s in segments]
        placed = [each.placed for each in share]
        return cls(segments, list(share), [torch.empty(0)] * len(segments), of_each, placed)

    def loss(
        self, recipe: Recipe, settings: TrainingSettings, learner: Learner, *, first: bool, critic_only: bool = False
    ) -> UpdateLoss:
        """All that the recipe asks for beside the objective; or what critics learn from alone."""
        step, place = learner.optimizers.done, int(learner.optimizers.place)
        critic, entropy, imitation = recipe.critic, settings.entropy, settings.imitation
        shown = imitation_weight(imitation, step) if imitation is not None else 0.0
        mixed = imitation is not None and imitation.mixed
        targets = self._with_shown([each.target for each in self.credited if each.target is not None], math.nan)
        return UpdateLoss(
            objective=_nothing,
            old=self.old,
            first=first and not self.old_known,
            weights=self.weights,
            extra=self.extra,
            policy_weight=0.0 if critic_only else 1 - shown if mixed else 1.0,
            reference=self.reference,
            kept=self.kept,
            reference_weight=settings.reference_kl,
            reference_estimator=settings.reference_estimator,
            entropy=entropy,
            band_strength=entropy.strength * phase_weight(place, settings.steps, form=entropy.phase)
            if entropy
            else 0.0,
            targets=targets,
            values=self._with_shown([each.value for each in self.credited if each.value is not None], 0.0),
            critic=critic,
            value_weight=critic.weight * self.per(self.predictions) if critic is not None else 0.0,
            imitation_weight=shown * self.per(self.imitated),
        )

    def column(self, given: Given, name: str) -> list[Tensor]:
        """A column of the batch at the action tokens of each segment."""
        at_actions = given.columns.at_actions(given.columns[name])
        found = [at_actions[i][k] for i, k in self.placed]
        rest = self.segments[len(self.placed) :]
        return [*found, *(torch.zeros(action_tokens(segment)) for segment in rest)]

    def _with_shown(self, of_own: Sequence[Tensor], nothing: float) -> list[Tensor] | None:
        if not of_own:
            return None
        rest = self.segments[len(of_own) :]
        return [*of_own, *(torch.full((action_tokens(s), of_own[0].shape[1]), nothing) for s in rest)]

    @property
    def own_tokens(self) -> int:
        """How many action tokens of the policy's own episodes there are."""
        return sum(map(action_tokens, self.segments[: len(self.placed)]))

    @property
    def predictions(self) -> int:
        """How many values critics are to foretell."""
        return sum(int((~each.target.isnan()).sum()) for each in self.credited if each.target is not None)

    @property
    def imitated(self) -> int:
        """How many tokens an expert wrote."""
        return sum(author is Author.EXPERT for segment in self.segments for author in segment.tokens.authors)

    def per(self, count: int) -> float:
        """What turns a sum over the divisor into a mean over `count`."""
        return self.divisor / max(1, count)


def imitation_weight(settings: ImitationSettings, step: int) -> float:
    """What imitation counts for at a step of reinforcement."""
    if settings.final_weight is None:
        return settings.weight
    return mixing_weight(step, start=settings.weight, end=settings.final_weight, decay=settings.decay_steps)
