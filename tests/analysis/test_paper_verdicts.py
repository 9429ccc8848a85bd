"""Papers: verdicts follow from stored rows, and every named component, bench and page exists."""

import functools
import json
import math
import random
from pathlib import Path

import pytest

from claims.bench_settings import read_bench
from claims.claim_effects import MIN_SEEDS, check_entry, collect_verdicts, judge_claims
from claims.evidence import assemble_bench
from claims.matrix import method_rows, probability_of_improvement
from claims.measures import upgrade_result
from support.cli import whetstone
from whetstone.algorithms import ADVANTAGES, OBJECTIVES
from whetstone.analysis.paper_verdicts import (
    ELSEWHERE,
    MISSING,
    effect_counts,
    exact_counts,
    load_papers,
    paper_called,
    read_papers,
)
from whetstone.environments import ENVIRONMENTS
from whetstone.errors import RecipeError
from whetstone.evaluation.verdicts import BETTER, CANNOT_TELL, NO_DIFFERENCE, NOT_RUN, NOT_TESTABLE, WORSE
from whetstone.policies import stored_models
from whetstone.recipe import built_in_methods, built_in_recipes
from whetstone.recipe.settings import Recipe
from whetstone.rewards import REWARDS

ROOT = Path(__file__).parents[2]
BENCHES = {path.stem: path for path in sorted((ROOT / "benchmarks" / "evidence" / "benchmarks").glob("*.yaml"))}
bench_of = functools.cache(lambda name: read_bench(BENCHES[name]))
RESULTS = {
    path.stem: upgrade_result(json.loads(path.read_text()))
    for path in sorted((ROOT / "benchmarks/results/evidence").glob("*.json"))
}
KNOWN = {
    "method": built_in_methods(),
    "recipe": built_in_recipes(),
    "advantage": ADVANTAGES,
    "objective": OBJECTIVES,
    "reward": REWARDS,
    "environment": ENVIRONMENTS,
}


def named_rightly(mechanism):
    kind, _, name = mechanism.partition(" ")
    if kind in KNOWN:
        return name in KNOWN[kind]
    return mechanism == "stages of a recipe" or (kind == "key" and name.split(".")[0] in Recipe.model_fields)


def test_named_mechanisms_exist():
    named = {paper.key: paper.mechanism for paper in load_papers().values() if paper.mechanism}
    assert not {key: mechanism for key, mechanism in named.items() if not named_rightly(mechanism)}


def test_papers_and_benches_name_each_other():
    of_files = {(claim.paper, name) for name in BENCHES for claim in bench_of(name).claims}
    of_papers = {(paper.key, name) for paper in load_papers().values() for name in paper.benches}
    assert of_files == of_papers
    assert {each.paper for name in BENCHES for each in bench_of(name).not_tried} <= set(load_papers())


def test_named_pages_exist():
    pages = {paper.page for paper in load_papers().values() if paper.page}
    assert all((ROOT / "benchmarks" / "results" / f"{page}.md").is_file() for page in pages)


def equal_but_for_rounding(left, right):
    """Compare two JSON values up to the last of six stored decimals, which depends on the processor."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal_but_for_rounding(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal_but_for_rounding, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right or math.isclose(left, right, rel_tol=1e-9, abs_tol=1.5e-6)
    return left == right


def test_every_verdict_follows_from_stored_rows():
    recomputed = {
        name: json.loads(json.dumps(judge_claims(bench_of(name), result))) for name, result in RESULTS.items()
    }
    assert equal_but_for_rounding(recomputed, {name: result["claims"] for name, result in RESULTS.items()})
    stored = json.loads((ROOT / "src/whetstone/analysis/verdicts.json").read_text())
    assert stored == collect_verdicts(RESULTS.values()), "run python -m benchmarks evidence all --judge"


def test_no_method_is_better_or_worse_without_eight_seeds_and_a_learning_baseline():
    for name, result in RESULTS.items():
        rows = {each["name"]: {r["seed"]: r for r in each["runs"] if not r["failed"]} for each in result["contenders"]}
        for claim in result["claims"]:
            for part in claim["parts"]:
                if part["verdict"] in (BETTER, WORSE, NO_DIFFERENCE):
                    assert part["seeds"] >= MIN_SEEDS, (name, claim["claim"])
                    assert part["counted"]
                    assert not bench_of(name).learning or check_entry(rows[part["than"]]).problem is None


def test_every_paper_that_was_not_run_has_a_reason_and_a_group():
    missing = [paper for paper in load_papers().values() if paper.effect == NOT_RUN]
    assert all(paper.why and paper.missing in MISSING for paper in missing)
    assert sum(effect_counts(load_papers().values()).values()) == len(load_papers())
    assert sum(exact_counts(load_papers().values()).values()) == len(load_papers())


def entry(**more):
    return {"title": "A Paper", "claim": "It works", **more}


def verdict(name):
    return {"paper": "p", "bench": "b", "world": "w", "claim": "c", "verdict": name, "reason": "r", "figures": "f",
            "seeds": 8, "date": "d", "version": "v"}  # fmt: skip


def test_paper_has_the_verdict_of_its_weakest_testable_claim():
    def effect(*names):
        return read_papers({"p": entry(why="x")}, [verdict(each) for each in names])["p"].effect

    assert effect(BETTER, BETTER) == BETTER
    assert effect(BETTER, CANNOT_TELL) == CANNOT_TELL
    assert effect(BETTER, WORSE, CANNOT_TELL) == WORSE
    assert effect(BETTER, NOT_TESTABLE) == BETTER
    assert effect(NOT_TESTABLE) == NOT_TESTABLE
    assert effect() == NOT_RUN
    assert read_papers({"p": entry(page="worlds")}, [])["p"].effect == ELSEWHERE


def test_exact_verdict_prefers_a_property_over_a_formula():
    def exact(**more):
        return read_papers({"p": entry(why="x", **more)}, [])["p"].exact_verdict

    assert exact() == "no exact check"
    assert exact(formula="paper") == "formula as in the paper"
    assert exact(formula="released code", simpler="no tree") == "simpler than the paper"
    exact_papers = [paper for paper in load_papers().values() if paper.exact]
    assert {paper.exact_verdict for paper in exact_papers} == {"property shown"}


@pytest.mark.parametrize(
    ("document", "verdicts", "message"),
    [
        ({"p": entry()}, [], "p: was not run and has no reason; set why"),
        ({"p": entry(why="x", benhc=["a"])}, [], 'no such key benhc; did you mean "bench"'),
        ({"p": entry(why="x", formula="code")}, [], "p: formula: code: one of released code, paper"),
        ({"q": entry(why="x")}, [verdict(BETTER)], "a claim of paper p, which is not listed"),
    ],
)
def test_errors_of_the_list_name_the_entry(document, verdicts, message):
    with pytest.raises(RecipeError, match=message):
        read_papers(document, verdicts)


def test_paper_is_found_by_key_id_or_title():
    assert paper_called("gigpo") is paper_called("2505.10978") is paper_called("Group-in-Group")
    with pytest.raises(RecipeError, match='did you mean "gigpo"'):
        paper_called("gigpoo")
    with pytest.raises(RecipeError, match=r"papers match, e\.g\."):
        paper_called("reinforcement learning")


@pytest.mark.slow
def test_command_prints_papers():
    every = json.loads(whetstone("papers", "--json").stdout)
    assert sum(every["effect"].values()) == sum(every["exact"].values()) == len(every["papers"]) == len(load_papers())
    assert "effect: better" in whetstone("papers").stdout
    one = whetstone("papers", "--paper", "gigpo")
    assert "Group-in-Group Policy Optimization" in one.stdout
    missing = whetstone("papers", "--paper", "gigpoo")
    assert (missing.returncode, 'did you mean "gigpo"' in missing.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name, path in BENCHES.items() if "\nscript:" not in path.read_text()))
def test_contenders_of_every_bench_can_be_assembled(name, monkeypatch):
    if "smollm2" in BENCHES[name].read_text() and "smollm2-135m" not in stored_models():
        pytest.skip("a pretrained model: whetstone models add smollm2-135m")
    assert len(assemble_bench(name, bench_of(name)).contenders) == len(bench_of(name).contenders)


def test_probability_of_improvement_counts_pairs_of_runs_with_ties_half():
    probability, low, high = probability_of_improvement([([1.0, 2.0], [0.0, 1.0]), ([0.5, 0.5], [0.5, 0.5])])
    assert probability == (3.5 / 4 + 0.5) / 2
    assert 0.5 <= low <= probability <= high <= 0.75


def test_probability_of_improvement_of_equal_methods_covers_one_half():
    draw = random.Random(0)
    covered = 0
    for repeat in range(60):
        sides = [[[draw.gauss(0.7, 0.05) for _ in range(8)] for _ in range(2)] for _ in range(3)]
        _, low, high = probability_of_improvement(sides, seed=repeat, repeats=100)
        covered += low <= 0.5 <= high
    assert covered >= 48


def test_methods_are_rows_only_with_two_settings_in_which_grpo_meets_the_entry_rule():
    def setting(name, start, gains):
        return {
            "name": name,
            "learning": True,
            "contenders": [
                {
                    "name": contender,
                    "runs": [
                        {"seed": seed, "failed": None, "before": start, "measures": {"success": start + gain}}
                        for seed in range(8)
                    ],
                }
                for contender, gain in gains.items()
            ],
        }

    one, other = (setting(name, 0.3, {"grpo": 0.4, "better": 0.5, name: 0.4}) for name in ("one", "other"))
    too_high = setting("too high", 0.6, {"grpo": 0.2, "better": 0.1})
    (row,) = method_rows([one, other, too_high])
    assert (row.name, sorted(row.effects), row.probability) == ("better", ["one", "other"], 1.0)
    assert round(row.difference, 6) == 0.1
    assert method_rows([one, too_high]) == []
