"""The files of a paper's appendix contain the numbers of their run or comparison."""

import csv
import json
import shutil

import pytest
import yaml

from support.cli import whetstone
from support.small import SMALL, TEACHING
from whetstone.recipe import load_recipe
from whetstone.reporting import Journal, Progress
from whetstone.training import train

GIVEN = [*SMALL, TEACHING, "ablations=null"]


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("appendix") / "demo"
    train(load_recipe("demo", [*GIVEN, "seed=7"]), folder, progress=Progress(quiet=True))
    return folder


def test_an_appendix_of_a_run_has_every_metric_interval_seed_and_version(run, tmp_path):
    done = whetstone("show", run, "--appendix", tmp_path / "appendix")
    assert done.returncode == 0, done.stderr
    files = {path.name for path in (tmp_path / "appendix").rglob("*") if path.is_file()}
    names = {"appendix.md", "results.tex", "evaluations.csv", "curves.csv", "demo.yaml", "demo-seed-7.json"}
    assert files == names
    assert len(done.stdout.splitlines()) == len(files)
    rows, curves = Journal(run).read(), read(tmp_path / "appendix" / "curves.csv")
    assert [(row["stage"], row["step"]) for row in curves] == [(row["stage"], str(row["step"])) for row in rows]
    for row, line in zip(rows, curves, strict=True):
        assert line["seed"] == "7"
        for name, value in row.items():
            assert line[name] == ("" if value is None else str(value))
    summary = json.loads((run / "summary.json").read_text())
    evaluations = {row["evaluation"]: row for row in read(tmp_path / "appendix" / "evaluations.csv")}
    assert list(evaluations) == list(summary["evaluations"])
    for name, result in summary["evaluations"].items():
        low, high = result["interval"]
        stored = evaluations[name]
        assert [float(stored[key]) for key in ("success", "low", "high")] == [result["success"], low, high]
    recipe = yaml.safe_load((tmp_path / "appendix" / "recipes" / "demo.yaml").read_text())
    assert recipe["seed"] == 7
    assert load_recipe(tmp_path / "appendix" / "recipes" / "demo.yaml").recipe.seed == 7
    environment = json.loads((tmp_path / "appendix" / "environments" / "demo-seed-7.json").read_text())
    assert environment["packages"]["torch"]
    assert not any("/" in name for name in environment["modules"])
    page = (tmp_path / "appendix" / "appendix.md").read_text()
    assert f"torch {environment['packages']['torch']}" in page
    assert "| seeds | 7 |" in page
    assert f"{max(each['episodes'] for each in summary['evaluations'].values())} held out" in page
    assert (tmp_path / "appendix" / "results.tex").read_text().count(r"\\") == 1 + len(summary["evaluations"])


def test_an_appendix_states_that_there_is_no_commit_and_how_to_get_one(run, tmp_path):
    copied = shutil.copytree(run, tmp_path / "copied")
    environment = json.loads((copied / "environment.json").read_text())
    (copied / "environment.json").write_text(json.dumps({**environment, "git": None}))
    assert whetstone("show", copied, "--appendix", tmp_path / "appendix").returncode == 0
    page = (tmp_path / "appendix" / "appendix.md").read_text()
    assert "| commit | none, since the run started in no git repository: `git init` and `git commit` before" in page


@pytest.mark.slow
def test_an_appendix_of_a_comparison_has_every_run_and_pair(tmp_path):
    arguments = [*GIVEN, "reinforcement.learning_rate=1e-3,1e-2", "--seeds", "2", "--output-dir", "sweep"]
    compared = whetstone("compare", "demo", *arguments, cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    done = whetstone("show", "sweep", "--appendix", "appendix", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "appendix"
    assert set(json.loads(done.stdout)["files"]) == {
        str(path.relative_to(tmp_path)) for path in folder.rglob("*") if path.is_file()
    }
    stored = json.loads((tmp_path / "sweep" / "comparison.json").read_text())
    (pair,) = read(folder / "pairs.csv")
    assert float(pair["difference"]) == stored["pairs"][0]["difference"]
    assert [pair["one"], pair["other"]] == ["learning_rate=1e-3", "learning_rate=1e-2"]
    last = [row for row in read(folder / "evaluations.csv") if row["evaluation"] == "reinforcement"]
    assert [(row["contender"], row["seed"]) for row in last] == [
        (f"learning_rate={rate}", str(seed)) for rate in ("1e-3", "1e-2") for seed in (0, 1)
    ]
    assert [float(row["success"]) for row in last] == [each for row in stored["contenders"] for each in row["success"]]
    rates = {
        path.stem: yaml.safe_load(path.read_text())["reinforcement"]["learning_rate"]
        for path in (folder / "recipes").glob("*")
    }
    assert rates == {"learning_rate=1e-3": 1e-3, "learning_rate=1e-2": 1e-2}
    assert "learning_rate=1e-3 − learning_rate=1e-2: " in (folder / "appendix.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "neither a run directory (recipe.yaml) nor a comparison (comparison.json)"),
        (["run", "--trajectory", "x"], "--trajectory: has no effect with --appendix"),
    ],
)
def test_sources_without_an_appendix_are_refused_in_one_line(run, tmp_path, arguments, message):
    (tmp_path / "nothing").mkdir()
    (tmp_path / "run").symlink_to(run)
    done = whetstone("show", *arguments, "--appendix", "appendix", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_unfinished_run_has_no_appendix(run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text((run / "recipe.yaml").read_text())
    done = whetstone("show", "run", "--appendix", "appendix", cwd=tmp_path)
    assert done.returncode == 2
    assert "the run is not finished" in done.stderr
