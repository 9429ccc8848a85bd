"""Agreement of rules with held-out preferences: whether the better of two pieces of work satisfies more rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import binomtest

from whetstone.rewards.judge_rewards.rule_adherence import check_rules
from whetstone.rewards.judges import Judge


@dataclass(frozen=True, slots=True)
class RuleAgreement:
    """Agreement of rules with preference pairs."""

    agreed: int
    """Number of pairs whose better side satisfies more rules."""
    opposed: int
    """Number of pairs whose worse side satisfies more rules."""
    pairs: int
    """Number of pairs; the others are ties."""
    by_rule: Mapping[str, tuple[int, int]]
    """By rule, the number of pairs in which only the better side satisfies it, and only the worse side."""

    @property
    def rate(self) -> float:
        """Return the fraction of pairs in agreement; a tie counts half."""
        return 0.5 + (self.agreed - self.opposed) / (2 * self.pairs)

    @property
    def p_value(self) -> float:
        """Return the probability of this agreement or more under chance (sign test without ties); 1 if all are ties."""
        decided = self.agreed + self.opposed
        return float(binomtest(self.agreed, decided, 0.5, "greater").pvalue) if decided else 1.0


async def measure_agreement(judge: Judge, rules: Sequence[str], pairs: Sequence[tuple[str, str, str]]) -> RuleAgreement:
    """Compare the fraction of satisfied rules of both sides of each pair.

    Args:
        judge: Judge that decides on each rule, as in the reward `rules`.
        rules: Texts of the rules.
        pairs: Tuples (task, better work, worse work) from which no rule was extracted.

    Raises:
        ValueError: If there are no pairs.

    Source: AutoRule 2025, arXiv:2506.15651.
    """
    if not pairs:
        raise ValueError("no held-out pairs; add pairs")
    agreed = opposed = 0
    by_rule = {rule: [0, 0] for rule in rules}
    for task, better, worse in pairs:
        of_better = await check_rules(judge, rules, task, better)
        of_worse = await check_rules(judge, rules, task, worse)
        agreed += sum(of_better) > sum(of_worse)
        opposed += sum(of_better) < sum(of_worse)
        for rule, first, second in zip(rules, of_better, of_worse, strict=True):
            by_rule[rule][0] += first and not second
            by_rule[rule][1] += second and not first
    return RuleAgreement(agreed, opposed, len(pairs), {rule: (a, b) for rule, (a, b) in by_rule.items()})
