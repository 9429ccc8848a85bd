"""A run records what produced it, and does not resume silently with other code."""

import hashlib
import json
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

from support.cli import whetstone
from support.leaked_secrets import LITERAL, mode_of
from support.small import SMALL
from whetstone.recipe import load_recipe
from whetstone.record.custom_code import changed_custom_code, digest_custom_code, secret_lines
from whetstone.training.run_provenance import describe_commit

REWARD = """
from shop_prices import bonus
from whetstone.trajectory import Score

async def paid(trajectory, task):
    return Score(float(sum(sum(turn.action.ids) for turn in trajectory.turns) % 2) + bonus(), success=True)
"""
TOOL = '''
def pocket_calculator(expression: str) -> str:
    """One operation.

    Args:
        expression: Two numbers with an operator between them.
    """
    return "7"
'''
ESTIMATOR = """
def centered(rewards, group):
    return rewards - rewards.mean()
"""
FILES = {
    "shop_reward.py": REWARD,
    "shop_prices.py": "from shop_deeper import BONUS\n\ndef bonus():\n    return BONUS\n",
    "shop_deeper.py": "BONUS = 0.0\n",
    "shop_tool.py": TOOL,
    "shop_credit.py": ESTIMATOR,
    "unused.py": "nothing = 1\n",
}
KEYS = {
    "extends": "demo", "ablations": None, "reward": "shop_reward:paid", "advantage": "shop_credit:centered",
    "environment": {"tools": ["shop_tool:pocket_calculator"]},
}  # fmt: skip


def project(folder, **more):
    """Write a folder with custom code and a recipe that names it."""
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "shop.yaml").write_text(yaml.safe_dump({**KEYS, **more}))
    return folder


def trained(folder, *more):
    return whetstone("train", "shop.yaml", *SMALL, "--run-dir", "run", *more, cwd=folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train a run that has made all its steps and lacks its summary, as after a kill."""
    folder = project(tmp_path_factory.mktemp("provenance") / "shop")
    done = trained(folder)
    assert done.returncode == 0, done.stderr
    (folder / "run" / "summary.json").unlink()
    return folder


@pytest.fixture
def shop(finished, tmp_path):
    """Return the project, which a test can change; a copy elsewhere would be two modules of one name."""
    shutil.copytree(finished / "run", tmp_path / "run")
    yield finished
    for name, text in FILES.items():
        (finished / name).write_text(text)
    shutil.rmtree(finished / "run")
    shutil.copytree(tmp_path / "run", finished / "run")


def environment_of(folder):
    return json.loads((folder / "run" / "environment.json").read_text())


def test_a_run_stores_versions_machine_and_digests(finished):
    stored = environment_of(finished)
    assert stored["packages"]["torch"] == torch.__version__
    assert stored["python"].startswith(platform.python_version())
    assert stored["threads"] == torch.get_num_threads()
    assert stored["device"] == "cpu"
    assert stored["processor"]["name"]
    named = {Path(path).name: each for path, each in stored["modules"].items()}
    assert set(named) == set(FILES) - {"unused.py"}
    for name, each in named.items():
        assert each["sha256"] == hashlib.sha256(FILES[name].encode()).hexdigest()
    assert named["shop_deeper.py"]["key"] == "reward.name"
    assert named["shop_tool.py"]["key"] == "environment.tools.0"
    assert mode_of(finished / "run" / "environment.json") == 0o600


def test_all_keys_that_use_a_file_are_recorded(tmp_path, monkeypatch):
    project(tmp_path / "shop", environment={"tools": ["shop_tool:pocket_calculator"]}, reward="shop_all:paid")
    (tmp_path / "shop" / "shop_all.py").write_text(f"import shop_tool\n{REWARD}")
    monkeypatch.chdir(tmp_path / "shop")
    keys = {Path(path).name: each["key"] for path, each in digest_custom_code(load_recipe("shop.yaml")).items()}
    assert keys["shop_tool.py"] == "environment.tools.0, reward.name"
    assert keys["shop_all.py"] == keys["shop_deeper.py"] == "reward.name"


@pytest.mark.parametrize("name", ["shop_reward.py", "shop_deeper.py", "shop_tool.py", "shop_credit.py"])
def test_edited_code_is_refused_in_one_line_and_accepted_on_request(shop, name):
    (shop / name).write_text(FILES[name] + "\n# edited\n")
    refused = trained(shop, "--resume")
    assert refused.returncode == 2
    last = refused.stderr.splitlines()[-1]
    assert name in last
    assert "was edited; resume with --accept-changes" in last
    before = environment_of(shop)
    accepted = trained(shop, "--resume", "--accept-changes")
    assert accepted.returncode == 0, accepted.stderr
    assert f"{name} was edited; the run continues with the new code" in accepted.stderr
    after = environment_of(shop)
    assert after["modules"] == before["modules"]  # the digests of its start
    (event,) = after["events"]
    assert event["event"] == "resumed"
    edited = next(each for path, each in event["modules"].items() if Path(path).name == name)
    assert edited["sha256"] == hashlib.sha256((shop / name).read_bytes()).hexdigest()
    (shop / "run" / "summary.json").unlink()
    assert trained(shop, "--resume").returncode == 0  # accepted once, and unchanged since


def test_unchanged_code_resumes_without_a_word(shop):
    done = trained(shop, "--resume")
    assert done.returncode == 0, done.stderr
    assert "code" not in done.stderr
    assert "modules" not in environment_of(shop)["events"][0]


def test_changes_are_reported_by_path_and_across_a_move():
    def files(**digests):
        return {
            f"/{path.replace('__', '/')}.py": {"key": "reward", "sha256": digest} for path, digest in digests.items()
        }

    before = files(old__a="1", old__b="2")
    assert changed_custom_code(before, files(old__a="1", old__b="2")) == {}
    assert changed_custom_code(before, files(new__a="1", new__b="2")) == {}
    assert changed_custom_code(before, files(new__a="1", new__b="3")) == {"/new/b.py": "edited"}
    assert changed_custom_code(before, files(old__a="1")) == {"/old/b.py": "removed"}
    assert changed_custom_code(before, files(old__a="1", old__b="2", old__c="4")) == {"/old/c.py": "added"}


def test_code_of_a_package_counts_with_relative_imports(tmp_path, monkeypatch):
    package = tmp_path / "mine" / "deep"
    package.mkdir(parents=True)
    texts = {
        "mine/__init__.py": "", "mine/deep/__init__.py": "", "mine/other.py": "x = 1\n",
        "mine/deep/credit.py": "from . import near\nfrom ..other import x\nimport numpy\n", "mine/deep/near.py": "",
        "mine/deep/apart.py": "",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    resolved = load_recipe({"extends": "demo", "ablations": None, "advantage": "mine.deep.credit:mine"})
    files = {str(Path(path).relative_to(tmp_path)) for path in digest_custom_code(resolved)}
    assert files == set(texts) - {"mine/deep/apart.py"}


def test_code_is_copied_on_request_except_files_with_secrets(tmp_path):
    folder = project(tmp_path / "shop", store_code=True)
    (folder / "shop_deeper.py").write_text(f'BONUS = 0.0\nAPI_KEY = "{LITERAL["api_key"]}"\n')
    done = trained(folder)
    assert done.returncode == 0, done.stderr
    copied = {path.name for path in (folder / "run" / "code").rglob("*.py")}
    assert copied == {"shop_reward.py", "shop_prices.py", "shop_tool.py", "shop_credit.py"}
    assert (folder / "run" / "code" / "shop_tool.py").read_text() == TOOL
    assert "store_code: shop_deeper.py: line 2 holds a secret, so the file is not copied" in done.stderr


@pytest.mark.parametrize(
    ("line", "is_secret"),
    [
        ('password = "hunter2 or so"', True),
        ('connect(api_key="x0x0x0x0")', True),
        ('keys = {"token": "abcdef123"}', True),
        (f'x = "{LITERAL["provider"]}"', True),
        ('url = "postgres://ann:pw12345@host/db"', True),
        ('password = os.environ["PASSWORD"]', False),
        ('name = "token"', False),
        ("token = 5", False),
    ],
)
def test_lines_with_secrets_are_found(tmp_path, line, is_secret):
    path = tmp_path / "code.py"
    path.write_text(f"import os\n{line}\n")
    assert secret_lines(path) == ([2] if is_secret else [])


def test_the_commit_of_the_working_directory_and_whether_it_was_changed(tmp_path, monkeypatch):
    def git(*arguments):
        who = ["-c", "user.name=ann", "-c", "user.email=ann@example.org"]
        return subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)

    git("init", "-q")
    (tmp_path / "shop.py").write_text("a = 1\n")
    git("add", "shop.py")
    git("commit", "-qm", "first")
    monkeypatch.chdir(tmp_path)
    clean = describe_commit()
    assert clean["commit"] == git("rev-parse", "HEAD").stdout.strip()
    assert (clean["is_dirty"], clean["changed_files"]) == (False, [])
    (tmp_path / "shop.py").write_text("a = 2\n")
    assert describe_commit()["changed_files"] == ["shop.py"]


def test_a_refused_resume_records_no_change_of_the_recipe(shop):
    (shop / "shop_tool.py").write_text(FILES["shop_tool.py"] + "\n# edited\n")
    before = (shop / "run" / "recipe.yaml").read_text()
    refused = whetstone("train", "run", "--resume", "reinforcement.steps=9", cwd=shop)
    assert refused.returncode == 2
    assert "the code of this run changed" in refused.stderr
    assert (shop / "run" / "recipe.yaml").read_text() == before
    assert not (shop / "run" / "changes.json").exists()
