"""Effects of claims follow from stored rows by one rule, and benches resume, reuse rows and detect stale ones."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from claims import measures
from claims.bench_settings import BenchSettings, read_bench
from claims.claim_effects import adjust_over_page, judge_claims
from claims.evidence import (
    assemble_bench,
    build_result,
    build_row,
    find_stale,
    rejudge_result,
    run_bench,
    take_fingerprint,
)
from claims.measures import area_under, first_reached, measure_from
from support.rewards import episode
from whetstone.analysis import comparison
from whetstone.errors import NonFiniteError, RecipeError
from whetstone.evaluation.verdicts import (
    BETTER,
    CANNOT_TELL,
    NO_DIFFERENCE,
    NOT_RUN,
    NOT_TESTABLE,
    WORSE,
    find_weakest_effect,
)
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


def row(seed, success, *, failed=None, before=None, warm_up=None, **measures):
    """Build a row of a run that solved the first tasks."""
    right = round(success * TASKS)
    return {
        "seed": seed,
        "failed": failed,
        "before": before,
        "warm_up": warm_up,
        "outcomes": "1" * right + "0" * (TASKS - right),
        "measures": {"success": success, **measures},
    }


def stored_rows(**contenders):
    return {"contenders": [{"name": name, "runs": runs} for name, runs in contenders.items()]}


def verdict(settings, **contenders):
    (claim,) = judge_claims(settings, stored_rows(**contenders))
    return claim["verdict"]


A_ABOVE_B = {"better": "a", "than": "b"}
EIGHT = range(8)


def learning(success, seeds=EIGHT, **measures):
    """A contender that starts at 30 % and meets the entry rule, with one success per seed."""
    values = [success] * len(seeds) if isinstance(success, float) else success
    return [row(seed, value, before=0.3, **measures) for seed, value in zip(seeds, values, strict=True)]


NOISE = (0.02, -0.02, 0.01, -0.01, 0.02, -0.02, 0.01, -0.01)


def test_interval_above_zero_is_better_and_below_zero_is_worse():
    b = learning(0.6)
    a = learning([0.75 + noise for noise in NOISE])
    (claim,) = judge_claims(bench(A_ABOVE_B), stored_rows(a=a, b=b))
    # differences 0.15 + noise, sample deviation √(0.002 / 7) = 0.0169, error 0.00598, t(7) = 2.365: 0.1359 to 0.1641
    assert claim["parts"][0]["interval"] == pytest.approx([0.1359, 0.1641], abs=1e-3)
    assert (claim["verdict"], claim["reason"]) == (BETTER, "clearly")
    assert verdict(bench({"better": "b", "than": "a"}), a=a, b=b) == WORSE


def test_interval_within_the_margin_is_no_difference_and_a_wide_one_cannot_tell():
    b = learning(0.6)
    assert verdict(bench(A_ABOVE_B), a=learning([0.6 + noise for noise in NOISE]), b=b) == NO_DIFFERENCE
    (claim,) = judge_claims(bench(A_ABOVE_B), stored_rows(a=learning([0.62 + 8 * noise for noise in NOISE]), b=b))
    assert claim["verdict"] == CANNOT_TELL
    assert int(claim["reason"].split()[0]) > 8


def test_seven_seeds_cannot_tell():
    seeds = range(7)
    a, b = learning([0.75 + noise for noise in NOISE[:7]], seeds), learning(0.6, seeds)
    (claim,) = judge_claims(bench(A_ABOVE_B), stored_rows(a=a, b=b))
    assert (claim["verdict"], claim["reason"]) == (CANNOT_TELL, "7 of 8 seeds")


@pytest.mark.parametrize(
    ("baseline", "problem"),
    [
        ([row(s, 0.6, before=0.1) for s in EIGHT], "the baseline starts at 10 %"),
        ([row(s, 0.45, before=0.3) for s in EIGHT], "the baseline gains +15 points in one of 8 seeds"),
        ([row(s, 0.9, before=0.3) for s in EIGHT], "the baseline ends at 90 %"),
        ([row(s, 0.6) for s in EIGHT], "no stored success before reinforcement"),
    ],
)
def test_baseline_that_fails_the_entry_rule_gives_no_verdict(baseline, problem):
    (claim,) = judge_claims(bench(A_ABOVE_B), stored_rows(a=learning([0.75 + noise for noise in NOISE]), b=baseline))
    assert (claim["verdict"], claim["reason"]) == (NOT_TESTABLE, f"entry rule: {problem}")
    free = bench(A_ABOVE_B).model_copy(update={"learning": False})
    assert verdict(free, a=learning([0.3 + noise for noise in NOISE]), b=baseline) == WORSE


def test_equal_outcomes_and_stated_reasons_are_not_testable():
    assert verdict(bench(A_ABOVE_B), a=learning(0.6), b=learning(0.6)) == NOT_TESTABLE
    stated = bench({**A_ABOVE_B, "untestable": "the schedule is longer than the run"})
    (claim,) = judge_claims(stated, stored_rows(a=learning([0.75 + noise for noise in NOISE]), b=learning(0.6)))
    assert (claim["verdict"], claim["reason"]) == (NOT_TESTABLE, "the schedule is longer than the run")


def test_comparison_with_a_policy_that_does_not_learn_is_not_counted():
    settings = bench({"better": "a", "than": ["b", "c"]}, contenders=("a", "b", "c"))
    settings = settings.model_copy(update={"untrained": ["c"]})
    a, c = learning([0.75 + noise for noise in NOISE]), learning(0.3)
    (claim,) = judge_claims(settings, stored_rows(a=a, b=learning(0.6), c=c))
    assert [part["counted"] for part in claim["parts"]] == [True, False]
    assert claim["verdict"] == BETTER
    (claim,) = judge_claims(
        bench({"better": "a", "than": "c"}, contenders=("a", "c")).model_copy(update={"untrained": ["c"]}),
        stored_rows(a=a, c=c),
    )
    assert (claim["verdict"], claim["reason"]) == (NOT_TESTABLE, "compared only with a policy that does not learn")


def test_claim_has_the_verdict_of_its_weakest_part():
    claim = {**A_ABOVE_B, "measure": ["success", {"evaluation": "tool_calls", "better": "lower"}]}
    a = [row(s, 0.75 + noise, before=0.3, tool_calls=3.0 + noise) for s, noise in enumerate(NOISE)]
    b = [row(s, 0.6, before=0.3, tool_calls=2.0) for s in EIGHT]
    (result,) = judge_claims(bench(claim), stored_rows(a=a, b=b))
    assert [part["verdict"] for part in result["parts"]] == [BETTER, WORSE]
    assert result["verdict"] == WORSE


def test_allowed_loss_counts_as_no_difference():
    a, b = learning([0.58 + noise for noise in NOISE]), learning(0.6)  # -0.034 to -0.006
    assert verdict(bench(A_ABOVE_B), a=a, b=b) == NO_DIFFERENCE
    assert verdict(bench({**A_ABOVE_B, "within": 0.04}), a=a, b=b) == NO_DIFFERENCE
    calls = {**A_ABOVE_B, "measure": {"evaluation": "tool_calls", "better": "lower"}, "within": 0.5}
    a = [row(s, 0.6, before=0.3, tool_calls=2.3 + noise) for s, noise in enumerate(NOISE)]
    b = [row(s, 0.6, before=0.3, tool_calls=2.0) for s in EIGHT]
    assert verdict(bench(calls), a=a, b=b) == NO_DIFFERENCE
    assert verdict(bench({**calls, "within": 0.2}), a=a, b=b) == WORSE


def test_failed_seed_is_reported_and_the_claim_cannot_tell():
    a, b = learning([0.75 + noise for noise in NOISE]), learning(0.6)
    failed = {"seed": 8, "failed": "gradients were not finite"}
    (claim,) = judge_claims(bench(A_ABOVE_B), stored_rows(a=[*a, failed], b=b))
    assert (claim["verdict"], claim["failed"]) == (CANNOT_TELL, {"a, seed 8": "gradients were not finite"})


def test_contender_without_rows_is_not_run():
    assert verdict(bench(A_ABOVE_B), a=learning(0.6)) == NOT_RUN


def test_contenders_of_one_seed_with_different_warm_ups_are_refused():
    a, b = [row(0, 0.6, warm_up="x")], [row(0, 0.6, warm_up="y")]
    with pytest.raises(ValueError, match=r"seed 0: contenders started from different warm-ups: a x, b y; run them"):
        judge_claims(bench(A_ABOVE_B), stored_rows(a=a, b=b))


def test_better_must_pass_benjamini_hochberg_over_the_page():
    def part(p, effect):
        return {"counted": True, "verdict": effect, "reason": "95 % interval", "seeds": 8, "p": p}

    def claim(*parts):
        return {"parts": list(parts), "verdict": find_weakest_effect(each["verdict"] for each in parts), "reason": "r"}

    claims = [claim(part(0.001, BETTER)), claim(part(0.04, WORSE)), claim(part(0.9, CANNOT_TELL))]
    adjusted = adjust_over_page(claims)  # 0.003, 0.06, 0.9
    assert [each["verdict"] for each in adjusted] == [BETTER, CANNOT_TELL, CANNOT_TELL]
    assert adjusted[1]["reason"] == "not significant over the page"


def test_areas_under_curves_and_first_steps():
    assert area_under([0, 10, 20], [0.0, 1.0, 1.0]) == 0.75
    assert area_under([5], [0.4]) == 0.4
    assert first_reached([10, 20], [0.2, 0.6], 0.5, 30) == 20
    assert first_reached([10, 20], [0.2, 0.4], 0.5, 30) == 30


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"claims": [{"paper": "p", "claim": "c", "better": "aa", "than": "b", "switch": "s"}]}, 'did you mean "a"'),
        ({"claims": [{"paper": "p", "claim": "c", "better": "a", "than": "b", "switch": "s", "measure": "succes"}]},
         'did you mean "success"'),
        ({"contenders": {"a": {}}}, "contenders: two or more are compared"),
        ({"budgett": {}}, 'did you mean "budget"'),
    ],
)  # fmt: skip
def test_invalid_bench_is_refused_in_one_line(changed, message, tmp_path):
    written = {**bench(A_ABOVE_B).model_dump(exclude_none=True), **changed}
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps(written))
    with pytest.raises(RecipeError, match=message) as refused:
        read_bench(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_measures_are_parsed():
    assert measure_from("area").label == "area under the curve"
    part = measure_from({"evaluation": "parts.right"})
    assert part.of(Path(), {"evaluations": {"reinforcement": {"parts": {"right": 0.25}}}}) == 0.25
    assert math.isnan(part.of(Path(), {"evaluations": {"reinforcement": {"parts": {}}}}))
    measure = measure_from({"metric": "update/grad_norm", "over": "max", "better": "lower"})
    assert (measure.label, measure.lower_is_better) == ("update/grad_norm (max)", True)
    with pytest.raises(RecipeError, match="a fraction of successes"):
        measure_from({"tokens_to": 50})
    with pytest.raises(RecipeError, match="pass_at: 3: one of 2, 4, 8"):
        measure_from({"pass_at": 3})


def test_pass_at_k_is_evaluated_once_with_the_weights_of_the_run(tmp_path, monkeypatch):
    calls = []

    def evaluate(folder, **how):
        calls.append((folder, how["samples"], how["temperature"]))
        return SimpleNamespace(pass_at={"1": 0.25, "2": 0.5})

    monkeypatch.setattr(measures, "evaluate", evaluate)
    result = measure_from({"pass_at": 2})
    assert [result.label, result.of(tmp_path, {}), result.of(tmp_path, {})] == ["pass@2", 0.5, 0.5]
    assert calls == [(tmp_path, 2, 1.0)]


def test_deviation_of_a_metric_is_a_measure(tmp_path):
    journal = Journal(tmp_path)
    for step, norm in enumerate((1.0, 3.0, 1.0, 3.0)):  # deviation of all steps: √(4 · 1² / 4) = 1
        journal.record("reinforcement", step + 1, {"update/grad_norm": norm})
    measure = measure_from({"metric": "update/grad_norm", "over": "deviation", "better": "lower"})
    assert measure.of(tmp_path, {}) == 1.0
    assert measure.label == "update/grad_norm (deviation)"


def test_timeouts_are_counted_in_training_and_in_the_final_evaluation(tmp_path):
    journal = Journal(tmp_path)
    journal.record("supervised", 1, {"end_reason/timeout": 1.0, "cost_per_step/episodes": 8.0})
    journal.record("reinforcement", 1, {"end_reason/timeout": 0.25, "cost_per_step/episodes": 8.0})
    journal.record("reinforcement", 2, {"cost_per_step/episodes": 8.0})
    judged = [episode("?", ended=EndReason.TIMEOUT), replace(episode("4"), id="another")]
    write_trajectories(tmp_path / "trajectories" / "evaluation-reinforcement.jsonl", judged)
    assert comparison.count_timeouts(tmp_path) == 3


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
def test_bench_trains_missing_rows_shares_the_warm_up_and_reports_failures(tmp_path, monkeypatch):
    trained = []

    def counted(resolved, folder, **more):
        trained.append(folder.name.rsplit("-", 1)[0])
        if folder.name.startswith("rloo") and resolved.recipe.seed == 1:
            raise NonFiniteError("gradients stopped being numbers")
        return train(resolved, folder, **more)

    monkeypatch.setattr(comparison, "train", counted)
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    bench_to_run = assemble_bench("toy", read_bench(path))
    options = {"folder": tmp_path / "runs", "progress": Progress(quiet=True), "machine": "m"}
    first = run_bench(bench_to_run, seeds=[0, 1], stored=None, **options)
    assert sorted(trained) == sorted(["warm-up", "grpo", "rloo", "cold"] * 2)
    repeated = run_bench(bench_to_run, seeds=[0, 1], stored=None, **options)  # from the folders, as after a kill
    assert repeated == first
    assert len(trained) == 8
    elsewhere = run_bench(
        bench_to_run, seeds=[0, 1], stored=json.loads(json.dumps(first)), **{**options, "folder": tmp_path / "x"}
    )
    assert elsewhere["contenders"] == first["contenders"]  # from stored rows
    assert len(trained) == 8
    (claim,) = first["claims"]
    assert claim["failed"] == {"rloo, seed 1": "gradients stopped being numbers"}
    assert [run["failed"] is None for run in first["contenders"][1]["runs"]] == [True, False]
    assert len(first["contenders"][0]["runs"][0]["outcomes"]) == 4
    hashes = {each["name"]: [run.get("warm_up") for run in each["runs"]] for each in first["contenders"]}
    assert hashes["grpo"][0] == hashes["rloo"][0] is not None
    assert hashes["cold"] == [None, None]
    assert first["contenders"][0]["runs"][0]["updates"] == 2
    assert find_stale(first, {}) == []
    first["contenders"][2]["settings"] = "of a file that was changed since"
    assert find_stale(first, {}) == ["cold"]
    taken = [
        take_fingerprint(bench_to_run, each, folder=tmp_path / "f", progress=options["progress"])
        for each in bench_to_run.contenders
    ]
    repeated = take_fingerprint(
        bench_to_run, bench_to_run.contenders[0], folder=tmp_path / "other", progress=options["progress"]
    )
    assert repeated["weights"] == taken[0]["weights"] != taken[2]["weights"]


def test_a_contender_is_stale_if_its_fingerprint_differs_on_the_same_processor():
    def result(**fingerprint):
        return {"contenders": [{"name": "a", "settings": "s", "fingerprint": fingerprint, "runs": [{"settings": "s"}]}]}

    now = {"a": {"weights": "x", "processor": "p"}}
    assert find_stale(result(weights="x", processor="p", commit="old"), now) == []
    assert find_stale(result(weights="y", processor="p"), now) == ["a"]
    assert find_stale(result(weights="y", processor="q"), now) == []
    assert find_stale(result(), now) == []


def test_result_of_a_script_is_judged_by_the_same_rules(tmp_path):
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
    with pytest.raises(RecipeError, match=r"order is run by another benchmark: python -m benchmarks orders"):
        assemble_bench("order", settings)
    rows = {
        name: {
            seed: build_row(settings, name, seed, {"success": success, "calls": calls + seed / 10}, [1.0, success])
            for seed, success in enumerate(shares)
        }
        for name, shares, calls in (("first", [1.0, 1.0, 0.0], 1.0), ("second", [0.0, 1.0, 0.0], 3.0))
    }
    output = build_result("order", settings, rows, world="demo", machine="m", budget={}, tasks=2)
    (claim,) = output["claims"]
    success, calls = claim["parts"]
    assert [success["difference"], calls["difference"]] == pytest.approx([1 / 3, -2.0])
    assert {success["verdict"], calls["verdict"], claim["verdict"]} == {NOT_TESTABLE}  # a script stores no start
    assert output["contenders"][0]["runs"][2]["outcomes"] == "10"
    assert find_stale(output, {}) == []


def test_stored_result_is_judged_by_the_current_claims_and_keeps_its_date():
    old = bench(contenders=("a", "b", "c"))
    success = {"a": 0.8, "b": 0.5, "c": 0.2}
    of = {"settings": "x", "version": "0"}
    rows = {name: {seed: {**row(seed, s), **of} for seed in range(3)} for name, s in success.items()}
    result = build_result("bench", old, rows, world="demo", machine="m", budget={}, tasks=TASKS)
    repeated = rejudge_result(bench(A_ABOVE_B), {**result, "date": "2020-01-01", "version": "0"})
    assert [claim["verdict"] for claim in repeated["claims"]] == [NOT_TESTABLE]
    assert (repeated["date"], repeated["version"]) == ("2020-01-01", "0")
    assert [each["name"] for each in repeated["contenders"]] == ["a", "b"]  # c is no longer a contender
    assert find_stale(repeated, {}) == ["a", "b"]  # rows of another state of the file
