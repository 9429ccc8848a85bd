"""Rules from preference pairs and metrics from comments, against rows that were held out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

from paper_properties import exact
from paper_properties.episodes import TASK, make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.rewards.judge_rewards.feedback_metrics import induce_metrics, measure_coverage
from whetstone.rewards.judge_rewards.rule_adherence import Rules, extract_rules
from whetstone.rewards.judge_rewards.rule_agreement import measure_agreement
from whetstone.rewards.judges import Question, ScriptedJudge

WORDS = ("please", "source", "maybe")


def _answers(question: Question) -> Mapping[str, Any]:
    """Answer from words: a rule or metric is a word, and work that contains the word satisfies or shows it."""
    fields, material = question.shape["properties"], question.material
    if "Merge" in question.ask:
        return {"rules": list(dict.fromkeys(material["rules"].split("\n")))}
    if "rules" in fields:
        better, worse = material["better"].split(), material["worse"].split()
        return {"rules": [word for word in WORDS if word in better and word not in worse]}
    if "met" in fields:
        return {"reason": "", "met": question.ask.rpartition(" ")[2] in material["work"].split()}
    if "aspects" in fields:
        return {"aspects": [{"behavior": word, "is_good": True} for word in material["comment"].split()]}
    if "metrics" in fields:
        names = dict.fromkeys(line.rpartition(" ")[2] for line in material["aspects"].split("\n"))
        return {"metrics": [{"name": name, "definition": "the word occurs"} for name in names]}
    if "trait" in fields:
        is_shown = material["metric"].partition(":")[0] in material["work"].split()
        return {"reason": "", "trait": "good" if is_shown else "absent"}
    word = material["aspect"].rpartition(" ")[2]
    return {"reason": "", "metric": word if word in fields["metric"]["enum"] else "none"}


@exact("autorule", of=(extract_rules, measure_agreement, Rules), note="the judge is scripted and reads words")
def extracted_rules_agree_with_held_out_preferences() -> list[Figure]:
    """Rules from training pairs whose preference is `please` before `source` agree with held-out pairs of the same
    preference more often than chance; averaged over all labelings of the held-out pairs, agreement is chance; the
    reward is the fraction of satisfied rules."""
    judge = ScriptedJudge(answers=_answers)
    train = [("t", "please source", "maybe"), ("t", "please", "source maybe"), ("t", "source x", "maybe x")]
    rules = asyncio.run(extract_rules(judge, train))
    # decided by please: 3; by source: 1; worse side with source only: 1; equal counts: 1
    test = [("t", "please a", "b"), ("t", "please source", "c"), ("t", "please", "maybe"), ("t", "source", "d"),
            ("t", "e", "source e"), ("t", "please f", "source f")]  # fmt: skip
    agreement = asyncio.run(measure_agreement(judge, rules, test))
    rates = []
    for flips in itertools.product((False, True), repeat=len(test)):
        labeled = [(task, *((b, a) if flip else (a, b))) for (task, a, b), flip in zip(test, flips, strict=True)]
        rates.append(asyncio.run(measure_agreement(judge, rules, labeled)).rate)
    reward = asyncio.run(Rules(judge=judge, rules=rules)(make_episode([make_turn("please f")]), TASK))
    return [
        Figure("number of rules", "=", 2, len(rules)),
        Figure("agreement, 4 of 6 pairs and a tie, bound: chance", ">", 0.5, agreement.rate),
        Figure("the same", "=", 4.5 / 6, agreement.rate),
        # sign test of 4 of 5: (5 + 1) / 32
        Figure("probability under chance", "=", 6 / 32, agreement.p_value),
        Figure("mean agreement over all labelings", "=", 0.5, sum(rates) / len(rates)),
        Figure("reward of work with one of two rules", "=", 0.5, reward.value),
    ]


@exact("autolibra", of=(induce_metrics, measure_coverage), note="the judge is scripted and reads words")
def comments_become_metrics_with_coverage_and_redundancy() -> list[Figure]:
    """Metrics are the distinct aspects of training comments; on held-out comments, coverage counts aspects with a
    matching metric in the episode, and redundancy counts metrics of the episode that its comment does not mention."""
    judge = ScriptedJudge(answers=_answers)
    metrics = asyncio.run(induce_metrics(judge, [("w", "please source"), ("w", "source")]))
    test = [("please source", "please"), ("source x", "source maybe"), ("x", "please")]
    result = asyncio.run(measure_coverage(judge, metrics, test))
    fewer = asyncio.run(measure_coverage(judge, metrics[1:], test))
    return [
        Figure("number of metrics", "=", 2, len(metrics)),
        # aspects please, source are covered; maybe has no metric, the last please no trait
        Figure("coverage, 2 of 4 aspects", "=", 2 / 4, result.aspect_coverage),
        # traits please, source of the first episode and source of the second; the first source is not mentioned
        Figure("redundancy, 1 of 3 traits", "=", 1 / 3, result.trait_redundancy),
        Figure("coverage without the first metric", "=", 1 / 4, fewer.aspect_coverage),
        Figure("redundancy without the first metric", "=", 1 / 2, fewer.trait_redundancy),
    ]
