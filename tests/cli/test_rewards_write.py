"""`whetstone rewards write`: a model's code is tested, audited and revised, and written only if it passes."""

import json

import pytest

from support.cli import whetstone
from support.sandbox import needs_isolation
from support.small import SMALL

DEMO = ["demo", *SMALL, "ablations={}", "--tasks", "2"]
RIGHT = (
    "def reward(trace):\\n    seen = [text for turn in trace['turns'] for text in turn['observations']]\\n"
    "    return 0.5 * (len(seen) == 1) * (str(trace['answer']) in seen)"
)
"""Code that pays an answer that the only tool result contains."""
DESIGNER = """
LEFT = [{proposals}]


def answers(question):
    if "code" in question.shape["properties"]:
        return {{"reason": "r", "code": LEFT.pop(0)}}
    return {{"reason": "r", "met": True}} if "met" in question.shape["properties"] else {{"analysis": "two\\nlines"}}
"""


def write(folder, *proposals, more=()):
    """Run the command with a designer that makes these proposals."""
    (folder / "designer.py").write_text(DESIGNER.format(proposals=", ".join(f'"{each}"' for each in proposals)))
    judge = "{name: scripted, answers: 'designer:answers'}"
    return whetstone("rewards", "write", *DEMO, "--judge", judge, "-o", "dense.py", *more, cwd=folder)


@needs_isolation
def test_code_is_revised_audited_and_written(tmp_path):
    endless = "def reward(trace):\\n    while 1: pass"
    backward = "def reward(trace):\\n    return 1.0 if trace['answer'] is None else 0.9"
    endless_calls = RIGHT.replace("0.5", "1.0 * (trace['ended'] == 'max_turns') - 0.02 + 0.01")
    done = write(tmp_path, endless, backward, endless_calls, RIGHT, more=["--json", "--min-correlation", "0.4"])
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["accepted"]
    assert report["rounds"] == 4
    assert report["episodes"] > 20
    assert "may never end" in report["objections"][0]
    assert "go with success at -0." in report["objections"][1]
    assert report["objections"][1].endswith("two\nlines")
    assert report["objections"][2].startswith("the audit of its sum with the reward fails: good before bad")
    assert report["objections"][3] == ""
    assert report["judge"]["requests"] == 4 + 3 + 1  # proposals, critics, one analysis
    assert (tmp_path / "dense.py").read_text().startswith("def reward(trace):")
    assert report["reward"]["path"] == "dense.py"
    assert report["reward"]["outcome"]["name"] == "exact_number"


@needs_isolation
def test_nothing_is_written_if_no_proposal_is_accepted(tmp_path):
    done = write(tmp_path, "def reward(trace):\\n    return 1.0", more=["--rounds", "1"])
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "proposal 1: it returns the same value for every episode"
    assert lines[-1] == "nothing written: none of 1 proposals is accepted"
    assert not (tmp_path / "dense.py").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--judge", "{name: scripted}"], "--judge: answers: "),
        (["--judge", "oracle"], '--judge: no judge named "oracle"'),
        (["--judge", "{name: ["], "the value is not YAML"),
        (["-o", "designer.py"], "designer.py: exists; choose another name"),
        (["--template", "designer.py"], "template: it is to be one function"),
    ],
)
def test_mistakes_are_one_line(tmp_path, more, message):
    done = write(tmp_path, "", more=more)
    line = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, message in line) == (2, True), line
