"""What is said of papers is what stored results say, and what is named is there."""

import functools
import json
from pathlib import Path

import pytest

from tests_cli import whetstone
from whetstone.algorithms import ADVANTAGES, OBJECTIVES
from whetstone.analysis.claim_status import HELD, IN_PART, NOT_TRIED
from whetstone.analysis.evidence import assembled, claims_of, read_bench
from whetstone.analysis.measures import upgrade_result
from whetstone.analysis.papers import ELSEWHERE, paper_called, papers, read_papers, shares, verdicts_of
from whetstone.environments import ENVIRONMENTS
from whetstone.errors import RecipeError
from whetstone.policies import kept_models
from whetstone.recipe import built_in_methods, built_in_recipes
from whetstone.recipe.settings import Recipe
from whetstone.rewards import REWARDS

ROOT = Path(__file__).parents[2]
BENCHES = {path.stem: path for path in sorted((ROOT / "benchmarks" / "evidence").glob("*.yaml"))}
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


def test_every_mechanism_that_is_named_is_there():
    named = {paper.key: paper.mechanism for paper in papers().values() if paper.mechanism}
    assert not {key: mechanism for key, mechanism in named.items() if not named_rightly(mechanism)}


def test_papers_and_benches_name_each_other():
    of_files = {(claim.paper, name) for name in BENCHES for claim in bench_of(name).claims}
    of_papers = {(paper.key, name) for paper in papers().values() for name in paper.benches}
    assert of_files == of_papers
    assert {each.paper for name in BENCHES for each in bench_of(name).not_tried} <= set(papers())


def test_pages_that_are_named_are_there():
    pages = {paper.page for paper in papers().values() if paper.page}
    assert all((ROOT / "benchmarks" / "results" / f"{page}.md").is_file() for page in pages)


def test_verdicts_are_those_of_stored_results():
    there = json.loads((ROOT / "src/whetstone/analysis/verdicts.json").read_text())
    assert there == verdicts_of(RESULTS.values()), "python benchmarks/evidence.py NAME --write writes them anew"


@pytest.mark.slow
def test_stored_verdicts_follow_from_the_stored_runs():
    again = {name: json.loads(json.dumps(claims_of(bench_of(name), told))) for name, told in RESULTS.items()}
    assert again == {name: told["claims"] for name, told in RESULTS.items()}


def test_every_paper_that_was_not_tried_says_why():
    assert all(paper.why for paper in papers().values() if paper.verdict == NOT_TRIED)
    assert sum(shares(papers().values()).values()) == len(papers())


def entry(**more):
    return {"title": "A Paper", "claim": "It works", **more}


def verdict(said):
    return {"paper": "p", "bench": "b", "world": "w", "claim": "c", "verdict": said, "figures": "f", "seeds": 3,
            "date": "d", "version": "v"}  # fmt: skip


def test_a_paper_holds_where_all_its_claims_do():
    def of(*said):
        return read_papers({"p": entry(why="x")}, [verdict(each) for each in said])["p"].verdict

    assert of(HELD, HELD) == HELD
    assert of(HELD, NOT_TRIED) == IN_PART
    assert of() == NOT_TRIED
    assert read_papers({"p": entry(page="worlds")}, [])["p"].verdict == ELSEWHERE


@pytest.mark.parametrize(
    ("document", "verdicts", "said"),
    [
        ({"p": entry()}, [], "p: was not tried, and why is not said"),
        ({"p": entry(why="x", benhc=["a"])}, [], 'no such key benhc; did you mean "bench"'),
        ({"q": entry(why="x")}, [verdict(HELD)], "no paper p"),
    ],
)
def test_what_is_wrong_with_the_list_is_said(document, verdicts, said):
    with pytest.raises(RecipeError, match=said):
        read_papers(document, verdicts)


def test_a_paper_is_found_by_key_id_or_title():
    assert paper_called("gigpo") is paper_called("2505.10978") is paper_called("Group-in-Group")
    with pytest.raises(RecipeError, match='did you mean "gigpo"'):
        paper_called("gigpoo")
    with pytest.raises(RecipeError, match="papers, among them"):
        paper_called("reinforcement learning")


@pytest.mark.slow
def test_the_command():
    every = json.loads(whetstone("papers", "--json").stdout)
    assert sum(every["verdicts"].values()) == len(every["papers"]) == len(papers())
    one = whetstone("papers", "--paper", "gigpo")
    assert "Group-in-Group Policy Optimization" in one.stdout
    missing = whetstone("papers", "--paper", "gigpoo")
    assert (missing.returncode, 'did you mean "gigpo"' in missing.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name, path in BENCHES.items() if "\nscript:" not in path.read_text()))
def test_every_contender_of_every_bench_can_be_made(name, monkeypatch):
    if "smollm2" in BENCHES[name].read_text() and "smollm2-135m" not in kept_models():
        pytest.skip("a pretrained model: whetstone models add smollm2-135m")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    assert len(assembled(name, bench_of(name)).contenders) == len(bench_of(name).contenders)
