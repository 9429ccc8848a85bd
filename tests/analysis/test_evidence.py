"""A bench's verdicts are a rule over what is stored of its runs, the same for all."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests_rewards import episode
from whetstone.analysis import comparison, measures
from whetstone.analysis.claim_status import HELD, IN_PART, NOT_HELD, NOT_TRIED
from whetstone.analysis.evidence import (
    BenchSettings,
    assembled,
    claims_of,
    judged_anew,
    read_bench,
    result_of,
    row_of,
    run_bench,
    stale,
)
from whetstone.analysis.measures import area_under, first_reached, measure_from
from whetstone.analysis.repeats import repeats_of
from whetstone.errors import NonFiniteError, RecipeError
from whetstone.reporting import Journal, Progress, write_trajectories
from whetstone.training import train
from whetstone.trajectory import EndReason

TASKS = 40


def bench(*claims, contenders=("a", "b")):
    return BenchSettings.model_validate(
        {
            "question": "?",
            "recipe": {"extends": "demo"},
            "budget": {"episodes": 8},
            "contenders": {name: {} for name in contenders},
            "claims": [{"paper": "p", "claim": "c", "switch": "s", **claim} for claim in claims],
        }
    )


def row(seed, success, *, failed=None, **measures):
    """A run that solved the first tasks."""
    right = round(success * TASKS)
    return {
        "seed": seed,
        "failed": failed,
        "outcomes": "1" * right + "0" * (TASKS - right),
        "measures": {"success": success, **measures},
    }


def told(**contenders):
    return {"contenders": [{"name": name, "runs": runs} for name, runs in contenders.items()]}


def verdict(settings, **contenders):
    (claim,) = claims_of(settings, told(**contenders))
    return claim["verdict"]


A_ABOVE_B = {"better": "a", "than": "b"}


def test_a_claim_holds_where_the_interval_over_seeds_lies_on_its_side():
    b = [row(seed, 0.5) for seed in range(3)]
    # differences 0.20, 0.25, 0.30: mean 0.25, deviation 0.05, error 0.0289, t(2) = 4.303: 0.126 to 0.374
    a = [row(seed, 0.5 + more) for seed, more in enumerate((0.2, 0.25, 0.3))]
    (claim,) = claims_of(bench(A_ABOVE_B), told(a=a, b=b))
    assert claim["verdict"] == HELD
    assert claim["parts"][0]["interval"] == pytest.approx([0.126, 0.374], abs=1e-3)


def test_a_mean_on_the_claimed_side_with_a_clear_test_over_tasks_holds_in_part():
    # differences 0.05 and 0.45: the interval holds 0, but ten of forty tasks moved, all one way
    a, b = [row(0, 0.55), row(1, 0.95)], [row(0, 0.5), row(1, 0.5)]
    assert verdict(bench(A_ABOVE_B), a=a, b=b) == IN_PART


def test_the_other_side_and_no_difference_do_not_hold():
    b = [row(seed, 0.5) for seed in range(3)]
    assert verdict(bench(A_ABOVE_B), a=[row(seed, 0.2) for seed in range(3)], b=b) == NOT_HELD
    assert verdict(bench(A_ABOVE_B), a=b, b=b) == NOT_HELD


def test_one_seed_says_nothing():
    assert verdict(bench(A_ABOVE_B), a=[row(0, 0.9)], b=[row(0, 0.1)]) == NOT_TRIED


def test_a_failed_seed_is_told_and_a_claim_with_one_holds_in_part_at_most():
    b = [row(seed, 0.5) for seed in range(4)]
    a = [row(seed, 0.8 + seed / 40) for seed in range(3)]
    failed = {"seed": 3, "failed": "gradients stopped being numbers"}
    (claim,) = claims_of(bench(A_ABOVE_B), told(a=[*a, failed], b=b))
    assert claim["verdict"] == IN_PART
    assert claim["failed"] == {"a, seed 3": "gradients stopped being numbers"}


def test_what_never_ran_is_not_tried():
    assert verdict(bench(A_ABOVE_B), a=[row(0, 0.5)]) == NOT_TRIED


def test_fewer_is_better_where_the_measure_says_so():
    claim = {**A_ABOVE_B, "measure": {"tokens_to": 0.5}}
    a = [row(s, 0.5, **{"sampled tokens to 50%": 100 + s}) for s in range(3)]
    b = [row(s, 0.5, **{"sampled tokens to 50%": 200 + 3 * s}) for s in range(3)]
    assert verdict(bench(claim), a=a, b=b) == HELD
    assert verdict(bench(claim), a=b, b=a) == NOT_HELD


def test_a_part_that_holds_makes_a_claim_of_several_hold_in_part():
    claim = {**A_ABOVE_B, "measure": ["success", {"evaluation": "tool_calls", "better": "lower"}]}
    a = [row(s, 0.5, tool_calls=1.0 + s / 100) for s in range(3)]
    b = [row(s, 0.5, tool_calls=2.0) for s in range(3)]
    assert verdict(bench(claim), a=a, b=b) == IN_PART


def test_no_worse_than_a_margin_is_a_claim_too():
    a = [row(s, 0.5 + shift) for s, shift in enumerate((-0.025, 0.0, 0.025, 0.0))]
    b = [row(s, 0.5) for s in range(4)]
    assert verdict(bench({**A_ABOVE_B, "within": 0.1}), a=a, b=b) == HELD
    assert verdict(bench({**A_ABOVE_B, "within": 0.01}), a=a, b=b) == NOT_HELD


def test_a_claim_that_is_asked_beside_many_needs_a_smaller_p():
    # six of six moved tasks go one way: p = 2/64 = 0.031, clear alone, and 0.31 as one of ten
    def runs(share):
        return [row(0, share), row(1, 0.5)]

    names = [f"x{k}" for k in range(9)]
    alone = claims_of(bench(A_ABOVE_B), told(a=runs(0.65), b=runs(0.5)))
    many = claims_of(
        bench(A_ABOVE_B, *({"better": name, "than": "b"} for name in names), contenders=("a", "b", *names)),
        told(a=runs(0.65), b=runs(0.5), **{name: runs(0.5) for name in names}),
    )
    assert alone[0]["parts"][0]["p_tasks"] == pytest.approx(2 / 64)
    assert (alone[0]["verdict"], many[0]["verdict"]) == (IN_PART, NOT_HELD)


def test_curves_in_one_number():
    assert area_under([0, 10, 20], [0.0, 1.0, 1.0]) == 0.75
    assert area_under([5], [0.4]) == 0.4
    assert first_reached([10, 20], [0.2, 0.6], 0.5, 30) == 20
    assert first_reached([10, 20], [0.2, 0.4], 0.5, 30) == 30


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"claims": [{"paper": "p", "claim": "c", "better": "aa", "than": "b", "switch": "s"}]}, 'did you mean "a"'),
        ({"claims": [{"paper": "p", "claim": "c", "better": "a", "than": "b", "switch": "s", "measure": "succes"}]},
         'did you mean "success"'),
        ({"contenders": {"a": {}}}, "contenders: two or more are compared"),
        ({"budgett": {}}, 'did you mean "budget"'),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_bench_is_one_line(changed, said, tmp_path):
    written = {**bench(A_ABOVE_B).model_dump(exclude_none=True), **changed}
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps(written))
    with pytest.raises(RecipeError, match=said) as refused:
        read_bench(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_measures_as_they_are_written():
    assert measure_from("area").label == "area under the curve"
    part = measure_from({"evaluation": "parts.right"})
    assert part.of(Path(), {"evaluations": {"reinforcement": {"parts": {"right": 0.25}}}}) == 0.25
    assert math.isnan(part.of(Path(), {"evaluations": {"reinforcement": {"parts": {}}}}))
    measure = measure_from({"metric": "update/grad_norm", "over": "max", "better": "lower"})
    assert (measure.label, measure.lower_is_better) == ("update/grad_norm (max)", True)
    with pytest.raises(RecipeError, match="a share of successes"):
        measure_from({"tokens_to": 50})
    with pytest.raises(RecipeError, match="pass_at: 3: one of 2, 4, 8"):
        measure_from({"pass_at": 3})


def test_pass_at_k_is_played_once_with_the_weights_of_the_run(tmp_path, monkeypatch):
    asked = []

    def evaluate(folder, **how):
        asked.append((folder, how["samples"], how["temperature"]))
        return SimpleNamespace(pass_at={"1": 0.25, "2": 0.5})

    monkeypatch.setattr(measures, "evaluate", evaluate)
    found = measure_from({"pass_at": 2})
    assert [found.label, found.of(tmp_path, {}), found.of(tmp_path, {})] == ["pass@2", 0.5, 0.5]
    assert asked == [(tmp_path, 2, 1.0)]


def test_how_much_a_metric_moves_is_a_measure(tmp_path):
    journal = Journal(tmp_path)
    for step, norm in enumerate((1.0, 3.0, 1.0, 3.0)):  # deviation of the whole: √(4 · 1² / 4) = 1
        journal.record("reinforcement", step + 1, {"update/grad_norm": norm})
    measure = measure_from({"metric": "update/grad_norm", "over": "deviation", "better": "lower"})
    assert measure.of(tmp_path, {}) == 1.0
    assert measure.label == "update/grad_norm (deviation)"


def test_episodes_past_their_deadline_are_counted_in_training_and_in_the_evaluation_behind_it(tmp_path):
    journal = Journal(tmp_path)
    journal.record("supervised", 1, {"end_reason/timeout": 1.0, "cost_per_step/episodes": 8.0})
    journal.record("reinforcement", 1, {"end_reason/timeout": 0.25, "cost_per_step/episodes": 8.0})
    journal.record("reinforcement", 2, {"cost_per_step/episodes": 8.0})
    judged = [episode("?", ended=EndReason.TIMEOUT), replace(episode("4"), id="another")]
    write_trajectories(tmp_path / "trajectories" / "evaluation-reinforcement.jsonl", judged)
    assert comparison.timed_out(tmp_path) == 3


TOY = """
question: Does it run?
recipe:
  extends: demo
  policy: {tiny: {hidden_size: 16, num_heads: 2, num_layers: 1, intermediate_size: 16}}
  supervised: {steps: 2, batch_size: 4}
  reinforcement: {steps: 2, tasks_per_step: 2}
  rollout: {group_size: 2, max_new_tokens: 6}
  evaluation: {episodes: 4}
budget: {episodes: 8}
seeds: 2
contenders:
  grpo: {}
  rloo: {with: rloo}
  cold: {supervised: null}
claims:
  - {paper: rloo, claim: c, better: rloo, than: [grpo, cold], measure: [success, area], switch: advantage}
"""


@pytest.mark.slow
def test_a_bench_trains_what_is_not_stored_shares_its_warm_up_and_tells_what_failed(tmp_path, monkeypatch):
    trained = []

    def counted(resolved, there, **more):
        trained.append(there.name.rsplit("-", 1)[0])
        if there.name.startswith("rloo") and resolved.recipe.seed == 1:
            raise NonFiniteError("gradients stopped being numbers")
        return train(resolved, there, **more)

    monkeypatch.setattr(comparison, "train", counted)
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    found = assembled("toy", read_bench(path))
    given = {"folder": tmp_path / "runs", "progress": Progress(quiet=True), "machine": "m"}
    first = run_bench(found, seeds=[0, 1], stored=None, **given)
    assert sorted(trained) == sorted(["warm-up", "grpo", "rloo", "cold"] * 2)
    again = run_bench(found, seeds=[0, 1], stored=None, **given)  # from the folders, as after a kill
    assert again == first
    assert len(trained) == 8
    elsewhere = run_bench(
        found, seeds=[0, 1], stored=json.loads(json.dumps(first)), **{**given, "folder": tmp_path / "x"}
    )
    assert elsewhere["contenders"] == first["contenders"]  # from what is stored
    assert len(trained) == 8
    (claim,) = first["claims"]
    assert claim["failed"] == {"rloo, seed 1": "gradients stopped being numbers"}
    assert [run["failed"] is None for run in first["contenders"][1]["runs"]] == [True, False]
    assert len(first["contenders"][0]["runs"][0]["outcomes"]) == 4
    assert stale(first) == []
    first["contenders"][0]["runs"][0]["version"] = "0.0.9"
    first["contenders"][2]["settings"] = "of a file that was changed since"
    assert stale(first) == ["grpo", "cold"]


def test_a_bench_that_a_script_runs_is_judged_by_the_same_rules(tmp_path):
    path = tmp_path / "order.yaml"
    path.write_text("""
question: Which?
script: orders.py
contenders: {first: {}, second: {}}
claims:
  - {paper: rloo, claim: c, better: first, than: second, switch: order,
     measure: [success, {evaluation: calls, better: lower}]}
""")
    settings = read_bench(path)
    with pytest.raises(RecipeError, match=r"order is run by another benchmark: python benchmarks/orders\.py"):
        assembled("order", settings)
    made = {
        name: {
            seed: row_of(settings, name, seed, {"success": success, "calls": calls + seed / 10}, [1.0, success])
            for seed, success in enumerate(shares)
        }
        for name, shares, calls in (("first", [1.0, 1.0, 0.0], 1.0), ("second", [0.0, 1.0, 0.0], 3.0))
    }
    told = result_of("order", settings, made, world="demo", machine="m", budget={}, tasks=2)
    (claim,) = told["claims"]
    success, calls = claim["parts"]
    assert [success["difference"], calls["difference"]] == pytest.approx([1 / 3, -2.0])
    assert [success["holds"], calls["holds"]] == [False, True]
    assert claim["verdict"] == IN_PART
    assert told["contenders"][0]["runs"][2]["outcomes"] == "10"
    assert stale(told) == []


def test_a_stored_result_is_judged_under_the_claims_of_today_and_keeps_its_date():
    old = bench(contenders=("a", "b", "c"))
    success = {"a": 0.8, "b": 0.5, "c": 0.2}
    of = {"settings": "x", "version": "0"}
    rows = {name: {seed: {**row(seed, s), **of} for seed in range(3)} for name, s in success.items()}
    result = result_of("bench", old, rows, world="demo", machine="m", budget={}, tasks=TASKS)
    again = judged_anew(bench(A_ABOVE_B), {**result, "date": "2020-01-01", "version": "0"})
    assert [claim["verdict"] for claim in again["claims"]] == [HELD]
    assert (again["date"], again["version"]) == ("2020-01-01", "0")
    assert [each["name"] for each in again["contenders"]] == ["a", "b"]  # c is no contender any more
    assert stale(again) == ["a", "b"]  # rows of another version, and of another state of the file


def runs(*success):
    return [row(seed, each) for seed, each in enumerate(success)]


def of_seeds(count):
    return bench(A_ABOVE_B).model_copy(update={"seeds": count})


def test_a_later_mean_in_the_interval_of_the_first_agrees():
    (part,) = repeats_of(of_seeds(3), told(a=runs(0.8, 0.7, 0.75, 0.7, 0.8), b=runs(0.5, 0.5, 0.5, 0.5, 0.5)))
    # first +30, +20, +25: mean +25, 95 % half width 4.30 · 5 / √3 = 12.4; later +20, +30: mean +25
    assert round(part["first"], 3) == round(part["again"], 3) == 0.25
    assert part["agrees"]
    assert [round(end, 3) for end in part["interval"]] == [0.126, 0.374]
    assert part["verdicts"][0] == "held"


def test_a_later_mean_outside_it_does_not():
    (part,) = repeats_of(of_seeds(3), told(a=runs(0.8, 0.7, 0.75, 0.4, 0.4), b=runs(0.5, 0.5, 0.5, 0.5, 0.5)))
    assert not part["agrees"]
    assert part["verdicts"] == ["held", "not held at this scale"]


def test_one_later_seed_repeats_nothing():
    assert repeats_of(of_seeds(3), told(a=runs(0.8, 0.7, 0.75, 0.4), b=runs(0.5, 0.5, 0.5, 0.5))) == []
