"""Python, shell and files of an episode share one sandbox folder, and report the lifetime of variables."""

import asyncio
import json
from pathlib import Path

import pytest

from support.sandbox import PATIENT, needs_isolation
from support.tool_episodes import played
from whetstone.chat import Image, ToolCall
from whetstone.environments import ToolEnvironment
from whetstone.errors import RecipeError
from whetstone.sandbox import Ending, Limits, shared_sandbox
from whetstone.tools import Files, Python, Shell, Toolset, submit
from whetstone.trajectory import Task

HUMANEVAL = Path(__file__).parents[3] / "shared" / "data" / "humaneval" / "HumanEval.jsonl"
pytestmark = needs_isolation


def test_python_shell_and_files_share_a_folder():
    answers = played(
        Toolset([Python(limits=PATIENT), Shell(limits=PATIENT), Files(limits=PATIENT)], timeout_seconds=120),
        ("create", {"path": "a/b.txt", "text": "one\ntwo\nthree\n"}),
        ("python", {"code": "open('a/b.txt').read().upper()"}),
        ("shell", {"command": "cd a && wc -l b.txt"}),
        ("str_replace", {"path": "a/b.txt", "old": "two", "new": "2\n2.5"}),
        ("grep", {"pattern": r"^2"}),
        ("view", {}),
        ("view", {"path": "a/b.txt", "first": 2, "last": 3}),
    )
    assert [answer.text for answer in answers] == [
        "created a/b.txt",
        "'ONE\\nTWO\\nTHREE\\n'",
        "3 b.txt",
        "     1\tone\n     2\t2\n     3\t2.5\n     4\tthree",
        "a/b.txt:2:2\na/b.txt:3:2.5",
        "a/",
        "     2\t2\n     3\t2.5",
    ]
    assert {answer.record.outcome for answer in answers} == {"ok"}


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("view", {"path": "no"}, "there is no no"),
        ("view", {"path": "f", "first": 9}, "f has 3 lines"),
        ("str_replace", {"path": "f", "old": "x", "new": ""}, "exactly once, and is there 2 times, in lines 1, 3"),
        ("str_replace", {"path": "f", "old": "", "new": ""}, "is there 0 times"),
        ("str_replace", {"path": ".", "old": "x", "new": ""}, ". is a folder"),
        ("grep", {"pattern": "("}, "is no regular expression"),
        ("grep", {"pattern": "zzz"}, "no match"),
        ("view", {"path": "/etc/passwd"}, "/etc/passwd"),
        ("view", {"path": "/dev/zero"}, "is no file"),
        ("create", {"path": "/usr/x", "text": ""}, "error:"),
    ],
)
def test_file_errors_are_reported(name, arguments, message):
    task = Task("t", "?", private={"files": {"f": "x\ny\nx"}})
    assert message in played(Toolset([Files]), (name, arguments), task=task)[0].text


def test_files_of_a_task_exist_from_the_start():
    task = Task("t", "?", private={"files": {"data.csv": "a\n1\n"}})
    toolset = Toolset([Python(files={"given": "x"})])
    code = "open('data.csv').read() + open('given').read()"
    assert played(toolset, ("python", {"code": code}), task=task)[0].text == "'a\\n1\\nx'"


def test_files_remain_if_each_call_is_fresh():
    task = Task("t", "?", private={"files": {"data.csv": "a"}})
    code = "text = open('data.csv').read(); open('data.csv', 'a').write('b'); text"
    answers = played(Toolset([Python(persistence="reset")]), *[("python", {"code": code})] * 2, task=task)
    assert [answer.text for answer in answers] == ["'a'", "'a'"]
    answers = played(Toolset([Python()]), *[("python", {"code": code})] * 2, task=task)
    assert [answer.text for answer in answers] == ["'a'", "'ab'"]


def test_lifetime_of_variables_is_described_selected_and_recorded():
    for persistence, text in (("persistent", "2"), ("reset", "NameError: name 'x' is not defined")):
        python = Python(persistence=persistence)
        toolset = Toolset([python])
        assert "last" in toolset.specs[0].description or "begins with nothing" in toolset.specs[0].description
        first = asyncio.run(opened(ToolEnvironment(tools=[python])))
        assert first.declared == (("python", persistence),)
        answers = played(toolset, ("python", {"code": "x = 1"}), ("python", {"code": "x + 1"}))
        assert text in answers[1].text


async def opened(environment):
    observation = await environment.reset(Task("t", "?"), seed=0)
    await environment.close()
    return observation


def test_tools_that_share_a_sandbox_have_equal_settings():
    with pytest.raises(
        RecipeError, match="python and shell share a sandbox and must have the same `persistence`, got reset"
    ):
        Toolset([Python(persistence="reset"), Shell()])
    with pytest.raises(RecipeError, match="limits"):
        Toolset([Python(limits=Limits(wall_seconds=1)), Files()])


def test_each_ending_has_its_outcome_and_text():
    toolset = Toolset([Python(limits=Limits(wall_seconds=0.5, memory_mb=100))])
    answers = played(
        toolset,
        ("python", {"code": "while True: pass"}),
        ("python", {"code": "x = bytearray(10**9)"}),
        ("python", {"code": "import os; os._exit(3)"}),
        ("python", {"code": "1/0"}),
        ("python", {"code": "x = 1"}),
    )
    assert [a.record.outcome for a in answers] == ["timeout", "tool_error", "tool_error", "tool_error", "ok"]
    assert "longer than 0.5 s" in answers[0].text
    assert "variables are gone" in answers[0].text
    assert "MemoryError" in answers[1].text
    assert "exit code 3" in answers[2].text
    assert answers[4].text == "[nothing was printed]"


def test_a_plot_is_an_image_part():
    answer = played(
        Toolset([Python(limits=PATIENT)]), ("python", {"code": "import matplotlib.pyplot as p; _ = p.plot([1, 2])"})
    )[0]
    (image,) = (part for part in answer.content if isinstance(part, Image))
    assert image.url.startswith("data:image/png;base64,iVBOR")


def test_submitting_ends_the_episode():
    answer = played(Toolset([submit]), ("submit", {"answer": "42"}))[0]
    assert (answer.text, answer.record.outcome) == ("42", "stopped")


def test_forks_of_an_episode_with_a_sandbox_replay_its_calls():
    environment = ToolEnvironment(tools=[Python])
    assert not environment.stateless
    assert environment.replayable

    async def twice():
        texts = []
        for _ in range(2):
            await environment.reset(Task("t", "?"), seed=7)
            code = "import random, numpy\nrandom.random(), float(numpy.random.rand())"
            answer = await environment.toolset.call(ToolCall("python", json.dumps({"code": code})))
            texts.append(answer.text)
        await environment.close()
        return texts

    first, second = asyncio.run(twice())
    assert first == second


@pytest.mark.skipif(
    not HUMANEVAL.is_file(), reason=f"HumanEval is missing: put HumanEval.jsonl into {HUMANEVAL.parent}"
)
@pytest.mark.slow
def test_every_canonical_solution_of_humaneval_passes_its_tests():
    problems = [json.loads(line) for line in HUMANEVAL.read_text().splitlines()]

    async def graded(problem):
        session = shared_sandbox().session(persistent=False, limits=Limits(wall_seconds=30, cpu_seconds=30))
        program = (
            f"{problem['prompt']}{problem['canonical_solution']}\n{problem['test']}\ncheck({problem['entry_point']})"
        )
        right = await session.python(program)
        wrong = await session.python(program.replace(problem["canonical_solution"], "    return None\n"))
        session.close()
        return right.ending is Ending.OK, wrong.ending is not Ending.OK

    async def all_of_them():
        return await asyncio.gather(*map(graded, problems))

    results = asyncio.run(all_of_them())
    assert sum(right for right, _ in results) == 164
    assert sum(wrong for _, wrong in results) == 164
