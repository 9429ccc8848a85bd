"""Harbor task folders: reading, tasks, episodes in containers, grading and the check of folders."""

import asyncio
import json
import os
import random
import shutil
import subprocess
from dataclasses import replace

import pytest
from click.testing import CliRunner

from support.containers import busybox_image, needs_podman
from support.local_servers import installed_python
from whetstone.chat import ToolCall, assistant, user
from whetstone.cli.main import cli
from whetstone.environments import NEW_CONVERSATION
from whetstone.environments.harbor.harbor_containers import combine_grades, ends_task
from whetstone.environments.harbor.harbor_tasks import HarborTasks
from whetstone.environments.harbor.task_folder import find_folders, read_folder, resolve_variables
from whetstone.environments.registry import ENVIRONMENTS
from whetstone.environments.sandbox_grading import Grade, parse_reward_json, parse_reward_text
from whetstone.errors import InfrastructureError, RecipeError, TaskError

TESTS = """#!/bin/sh
if [ "$(cat /app/out.txt 2>/dev/null)" = 42 ]; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
CONFIG = """version = "1.0"
[metadata]
difficulty = "easy"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 30.0
[environment]
cpus = 1
memory = "256M"
storage_mb = 100
"""


def write_task(
    folder, *, name="write-42", config=CONFIG, tests=TESTS, solution="echo 42 > /app/out.txt\n", image="local"
):
    """Write a task folder that asks for a file with 42."""
    place = folder / name
    for part in ("environment", "tests", "solution"):
        (place / part).mkdir(parents=True)
    (place / "task.toml").write_text(config)
    (place / "instruction.md").write_text(f"Write 42 to /app/out.txt ({name}).\n")
    (place / "environment" / "Dockerfile").write_text(f"FROM {image}\nWORKDIR /app\nRUN echo seed > /app/in.txt\n")
    for part, script, text in (("tests", "test.sh", tests), ("solution", "solve.sh", solution)):
        if text:
            (place / part / script).write_text(f"#!/bin/sh\n{text}" if not text.startswith("#!") else text)
    return place


# ------------------------------------------------------------ reading


def test_values_of_old_and_new_formats_are_read(tmp_path):
    old = read_folder(write_task(tmp_path, name="old"))
    assert (old.memory_mb, old.storage_mb, old.cpus) == (256, 100, 1.0)
    new = CONFIG.replace('memory = "256M"', 'memory_mb = 512\nworkdir = "/w"\ndocker_image = "i"')
    folder = read_folder(write_task(tmp_path, name="new", config=new))
    assert (folder.steps[0].agent_seconds, folder.steps[0].verifier_seconds) == (60.0, 30.0)
    assert (folder.memory_mb, folder.workdir, folder.image, folder.problems) == (512, "/w", "i", ())


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('[[steps]]\nname = "a"', "steps/a/instruction.md is missing or empty"),
        ('[[steps]]\nname = "a"\n[steps.verifier.environment]\ncpus = 1', "another image"),
        ('network_mode = "allowlist"', "list of permitted hosts"),
        ("gpus = 1", "accelerator"),
        ('os = "windows"', "windows"),
        ('[environment.env]\nKEY = "${NOT_SET_HERE}"', "environment variable NOT_SET_HERE"),
        ('[[environment.mcp_servers]]\nname = "a"\nurl = "b"', "MCP servers"),
        ("[verifier.environment]\ncpus = 1", "another image"),
    ],
)
def test_folder_that_needs_more_than_is_supported_has_a_reason(tmp_path, line, problem):
    config = CONFIG + line + "\n"
    if line.startswith("[verifier.environment]"):
        config = config.replace("[verifier]", "[verifier]\n")
    assert problem in "; ".join(read_folder(write_task(tmp_path, config=config)).problems)


STEPS = """multi_step_reward_strategy = "{strategy}"
[agent]
user = 7
[verifier]
timeout_sec = 30.0
env = {{ SHARED = "1", OWN = "task" }}
[environment]
storage_mb = 100
[[steps]]
name = "one"
min_reward = {least}
[steps.agent]
user = 0
[[steps]]
name = "two"
[steps.verifier]
timeout_sec = 7.0
env = {{ OWN = "step" }}
[[steps]]
name = "three"
"""
GRADED = """. /tests/wanted.sh
[ "$(cat /app/out.txt 2>/dev/null)" = "$wanted" ] && found=1 || found=0
echo "{\\"reward\\": $found, \\"$wanted\\": $found}" > /logs/verifier/reward.json
"""


def write_steps(folder, *, image="local", strategy="mean", least=1.0):
    """Write a task of three steps, each of which asks for a word in a file; the second has files and a setup."""
    place = folder / "words"
    (place / "environment").mkdir(parents=True)
    (place / "environment" / "Dockerfile").write_text(f"FROM {image}\nWORKDIR /app\nRUN chmod 777 /app\n")
    (place / "task.toml").write_text(STEPS.format(strategy=strategy, least=least))
    (place / "tests").mkdir()
    (place / "tests" / "test.sh").write_text(f"#!/bin/sh\n{GRADED}")
    (place / "tests" / "wanted.sh").write_text("wanted=nothing\n")
    for name in ("one", "two", "three"):
        step = place / "steps" / name
        (step / "tests").mkdir(parents=True)
        (step / "solution").mkdir()
        (step / "instruction.md").write_text(f"Write {name}.\n")
        (step / "tests" / "wanted.sh").write_text(f"wanted={name}\n")
        (step / "solution" / "solve.sh").write_text(f"#!/bin/sh\necho {name} > /app/out.txt\n")
    (place / "steps" / "two" / "workdir").mkdir()
    (place / "steps" / "two" / "workdir" / "given.txt").write_text("given\n")
    (place / "steps" / "two" / "workdir" / "setup.sh").write_text("cp given.txt prepared.txt; rm out.txt\n")
    return place


def test_steps_have_their_own_values_and_those_of_the_task(tmp_path):
    folder = read_folder(write_steps(tmp_path))
    one, two, three = folder.steps
    assert (folder.problems, folder.reward_strategy, folder.steps[0].instruction) == ((), "mean", "Write one.\n")
    assert [step.agent_user for step in folder.steps] == ["0", "7", "7"]
    assert [step.verifier_seconds for step in folder.steps] == [30.0, 7.0, 30.0]
    assert two.verifier_variables == {"SHARED": "1", "OWN": "step"}
    assert three.verifier_variables == {"SHARED": "1", "OWN": "task"}
    assert [step.min_rewards for step in folder.steps] == [{"reward": 1.0}, {}, {}]
    assert [path.relative_to(folder.path).as_posix() for path in two.tests] == ["tests", "steps/two/tests"]
    assert (one.workdir_files, two.workdir_files) == (None, folder.path / "steps" / "two" / "workdir")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ('name = "two"', "not that of a folder: '../two'"),
        ('name = "one"', "two steps have one name"),
        ('strategy = "mean"', "multi_step_reward_strategy = 'sum'"),
    ],
)
def test_invalid_steps_are_one_line(tmp_path, changed, message):
    place = write_steps(tmp_path)
    other = {'name = "two"': 'name = "../two"', 'name = "one"': 'name = "Two"', 'strategy = "mean"': 'strategy = "sum"'}
    text = (place / "task.toml").read_text().replace(changed, other[changed])
    (place / "task.toml").write_text(text)
    with pytest.raises(TaskError, match=message):
        read_folder(place)


def test_expert_plays_the_solution_of_the_step_whose_instruction_was_read_last(tmp_path):
    place = write_steps(tmp_path)
    source, task = HarborTasks(path=str(place), held_out_fraction=1.0), task_of(place)
    conversation = []
    for name in ("one", "two", "three"):
        conversation.append(user(f"Write {name}.\n"))
        (call,) = source.demonstrate(task, conversation, ()).tool_calls
        assert f"echo {name} >" in json.loads(call.arguments)["command"]
        conversation.append(assistant("", call))
        assert source.demonstrate(task, conversation, ()).tool_calls == ()
    (place / "steps" / "two" / "instruction.md").write_text("Write one.\n")
    with pytest.raises(TaskError, match="steps one and two have the same instruction"):
        HarborTasks(path=str(place), held_out_fraction=1.0).demonstrate(task, conversation[:1], ())


@pytest.mark.parametrize(
    ("strategy", "rewards", "expected"),
    [
        ("mean", [{"reward": 1.0, "a": 1.0}, {"reward": 0.5}], {"reward": 0.75, "a": 0.5}),
        ("final", [{"reward": 1.0, "a": 1.0}, {"reward": 0.5}], {"reward": 0.5}),
        ("mean", [{"reward": 1.0}, {}], {"reward": 0.5}),
        ("mean", [{"reward": 0.25}], {"reward": 0.25}),
    ],
)
def test_rewards_of_steps_are_combined_as_the_task_says(tmp_path, strategy, rewards, expected):
    folder = read_folder(write_steps(tmp_path, strategy=strategy))
    assert combine_grades(folder, [Grade(each, "", "") for each in rewards]).rewards == expected


@pytest.mark.parametrize(
    ("least", "rewards", "ends"),
    [
        (None, {"reward": 0.0}, False),
        (0.5, {"reward": 0.5}, False),
        (0.5, {"reward": 0.4}, True),
        ({"a": 0.5}, {"reward": 0.0, "a": 0.5}, False),
        ({"a": 0.5, "b": 0.1}, {"reward": 1.0, "a": 0.5}, True),
        (None, {}, True),
    ],
)
def test_step_below_its_minimum_or_without_a_reward_is_the_last(tmp_path, least, rewards, ends):
    place = write_steps(tmp_path)
    written = json.dumps(least).replace(":", " =") if least is not None else ""
    text = (place / "task.toml").read_text().replace("min_reward = 1.0", f"min_reward = {written}" if written else "")
    (place / "task.toml").write_text(text)
    assert ends_task(read_folder(place).steps[0], Grade(rewards, "", "")) is ends


OF_HARBOR = """
import json, sys
from types import SimpleNamespace as Fake
from harbor.models.task.task import Task
from harbor.models.verifier.result import VerifierResult
from harbor.trial.multi_step import MultiStepTrial
task, cases = Task(sys.argv[1]), json.loads(sys.argv[2])
steps = [[step.name, task.step_instruction(step.name), step.verifier.timeout_sec] for step in task.config.steps]
combined = [
    MultiStepTrial._aggregate_step_rewards(
        Fake(result=Fake(step_results=[Fake(verifier_result=VerifierResult(rewards=each)) for each in rewards]))
    ).rewards
    for rewards, _ in cases
]
ended = [MultiStepTrial._min_reward_failure(rewards[0], least) is not None for rewards, least in cases]
print(json.dumps([steps, combined, ended]))
"""


@pytest.mark.slow
def test_steps_are_read_combined_and_ended_as_by_harbor(tmp_path):
    python = installed_python("harbor", "harbor")
    place, rng = write_steps(tmp_path), random.Random(0)
    cases = []
    for _ in range(40):
        rewards = [
            {"reward": rng.randrange(5) / 4, **{name: rng.randrange(5) / 4 for name in "ab" if rng.random() < 0.6}}
            for _ in range(rng.randint(1, 3))
        ]
        cases.append((rewards, rng.choice([0.5, 1.0, {"a": 0.5}, {"reward": 0.25, "b": 0.75}])))
    read = subprocess.run(
        [python, "-c", OF_HARBOR, str(place), json.dumps(cases)], capture_output=True, text=True, check=False
    )
    assert read.returncode == 0, read.stderr
    steps, combined, ended = json.loads(read.stdout)
    folder = read_folder(place)
    assert [(name, text) for name, text, _ in steps] == [(step.name, step.instruction) for step in folder.steps]
    assert steps[1][2] == folder.steps[1].verifier_seconds
    for (rewards, least), expected, is_last in zip(cases, combined, ended, strict=True):
        grades = [Grade(each, "", "") for each in rewards]
        assert combine_grades(folder, grades).rewards == pytest.approx(expected)
        least = least if isinstance(least, dict) else {"reward": least}
        assert ends_task(replace(folder.steps[0], min_rewards=least), grades[0]) is is_last


def test_missing_tests_and_several_containers_are_reasons(tmp_path):
    place = write_task(tmp_path, tests="")
    (place / "environment" / "docker-compose.yaml").write_text("services: {main: {build: .}, db: {image: sql}}\n")
    assert [reason.split(":")[0] for reason in read_folder(place).problems] == [
        "it has no tests",
        "it needs several containers (docker-compose",
    ]
    assert "(docker-compose: db, main), which are not supported" in read_folder(place).problems[1]
    (place / "environment" / "docker-compose.yaml").write_text("[")
    assert "(docker-compose), which are not supported" in read_folder(place).problems[1]


def test_invalid_files_are_one_line(tmp_path):
    place = write_task(tmp_path, config="x = \n")
    with pytest.raises(TaskError, match=r"task\.toml"):
        read_folder(place)
    (place / "task.toml").write_text('[environment]\nmemory = "2 apples"\n')
    with pytest.raises(TaskError, match="another type"):
        read_folder(place)
    with pytest.raises(TaskError, match=r"no folder with a task\.toml"):
        find_folders(tmp_path / "none")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "task.yaml").write_text("a: b")
    with pytest.raises(TaskError, match=r"Terminal-Bench 1"):
        find_folders(tmp_path / "old")


def test_variables_have_defaults_or_are_required(monkeypatch):
    monkeypatch.setenv("SET_HERE", "s")
    templates = {"A": "${SET_HERE}/x", "B": "${NOT_SET_HERE:-d}", "C": "plain"}
    assert resolve_variables(templates) == {"A": "s/x", "B": "d", "C": "plain"}
    with pytest.raises(RecipeError, match="NOT_SET_HERE is not set"):
        resolve_variables({"A": "${NOT_SET_HERE}"})


def test_rewards_are_finite_numbers():
    assert parse_reward_text(" 0.5\n") == {"reward": 0.5}
    assert parse_reward_json('{"reward": 1, "style": 0.25}') == {"reward": 1.0, "style": 0.25}
    for text in ("", "nan", "inf", "one"):
        with pytest.raises(ValueError, match=r"finite|could not convert"):
            parse_reward_text(text)
    for text in ("{}", "[1]", '{"a": "1"}', '{"a": NaN}', '{"a": 1e999}', "{"):
        with pytest.raises(ValueError, match=r"\w"):
            parse_reward_json(text)


def test_reward_of_a_task_is_the_one_with_that_name_or_the_only_one():
    assert Grade({"reward": 1.0, "style": 0.0}, "", "").reward == 1
    assert Grade({"accuracy": 0.5}, "", "").reward == 0.5
    assert Grade({}, "none", "").reward is None
    with pytest.raises(TaskError, match="none is named reward"):
        _ = Grade({"a": 1.0, "b": 0.0}, "", "").reward


# ------------------------------------------------------------ tasks


def test_folders_are_split_and_the_expert_plays_the_solution(tmp_path):
    for number in range(4):
        write_task(tmp_path, name=f"t{number}")
    source = HarborTasks(path=str(tmp_path), held_out_fraction=0.25)
    ids = {source.task(index).id for index in range(3)} | {task.id for task in source.held_out(9)}
    assert ids == {"t0", "t1", "t2", "t3"}
    task = source.task(0)
    assert (task.tags, task.private) == ({"difficulty": "easy"}, {"folder": str(tmp_path / task.id)})
    (call,) = source.demonstrate(task, [], ()).tool_calls
    assert json.loads(call.arguments) == {"command": "#!/bin/sh\necho 42 > /app/out.txt\n"}


def test_folder_with_a_canary_string_can_be_evaluated_and_not_trained_on(tmp_path):
    for number in range(3):
        place = write_task(tmp_path, name=f"t{number}")
    (place / "instruction.md").write_text("<!-- harbor-canary GUID 1234 -->\n\nWrite.\n")
    with pytest.raises(TaskError, match=r"canary string marks benchmark data.*\(1 of 3 folders\)"):
        HarborTasks(path=str(tmp_path))
    source = HarborTasks(path=str(tmp_path), held_out_fraction=1.0)
    assert [task.text for task in source.held_out(9)][2] == "Write.\n"
    with pytest.raises(TaskError, match="none can be trained on"):
        source.task(0)


def test_unplayable_folder_stops_or_is_counted(tmp_path):
    for number in range(3):
        write_task(tmp_path, name=f"t{number}", tests="" if number == 1 else TESTS)
    with pytest.raises(TaskError, match=r"t1: it has no tests.*`on_bad_row: skip`"):
        HarborTasks(path=str(tmp_path))
    assert HarborTasks(path=str(tmp_path), on_bad_row="skip").skipped == 1


# ------------------------------------------------------------ episodes


def play_steps(task, *actions, **options):
    """Return the results of actions, each a command or an answer in brackets, and the verdict of an episode."""

    async def episode():
        environment = ENVIRONMENTS["harbor"](**options)
        try:
            await environment.reset(task, seed=0)
            results = [
                await environment.step(
                    assistant(action[1:-1])
                    if action.startswith("[")
                    else assistant("", ToolCall("shell", json.dumps({"command": action})))
                )
                for action in actions
            ]
            return results, await environment.verdict()
        finally:
            await environment.close()

    return asyncio.run(episode())


@needs_podman
@pytest.mark.slow
def test_steps_share_a_container_and_are_graded_one_by_one(tmp_path):
    place = write_steps(tmp_path, image=busybox_image())
    solved = [
        "echo one > out.txt",
        "[done]",
        "cat given.txt prepared.txt; echo two > out.txt",
        "[done]",
        "echo three > out.txt",
    ]
    results, verdict = play_steps(task_of(place), *solved, "[done]")
    assert [result.reward for result in results] == [None, 1.0, None, 1.0, None, 1.0]
    assert [result.terminated for result in results] == [False] * 5 + [True]
    following = results[1].observation
    assert (following.messages[0].text, following.conversation) == ("Write two.\n", NEW_CONVERSATION)
    assert [tool.name for tool in following.tools] == ["shell"]
    assert results[2].observation.messages[0].text.split() == ["given", "given"]
    third = pytest.approx(1 / 3)
    assert verdict == {
        "success": True, "score": 1.0, "reward_one": third, "reward_two": third, "reward_three": third, "steps": 3
    }  # fmt: skip
    results, _ = play_steps(task_of(place), *solved[:2], resume_trajectory=True)
    assert results[1].observation.conversation == 0


@needs_podman
@pytest.mark.slow
def test_task_ends_below_the_minimum_and_counts_an_unfinished_step(tmp_path):
    place = write_steps(tmp_path, image=busybox_image())
    results, verdict = play_steps(task_of(place), "[no]")
    assert (results[0].reward, results[0].terminated, verdict["steps"]) == (0.0, True, 1)
    assert (verdict["success"], verdict["score"]) == (False, 0.0)
    _, verdict = play_steps(task_of(place), "echo one > out.txt", "[done]", "true")  # cut off in the second step
    assert (verdict["success"], verdict["score"], verdict["steps"]) == (False, 0.5, 2)
    _, verdict = play_steps(task_of(place), "echo one > out.txt", "[done]", "echo two > out.txt")
    assert (verdict["success"], verdict["score"], verdict["steps"]) == (False, 1.0, 2)
    (place / "steps" / "two" / "workdir" / "setup.sh").write_text("echo broken; exit 3\n")
    with pytest.raises(InfrastructureError, match=r"steps/two: setup\.sh failed: exit code 3: broken"):
        play_steps(task_of(place), "echo one > out.txt", "[done]")


@needs_podman
@pytest.mark.slow
def test_check_plays_all_steps(tmp_path):
    place = write_steps(tmp_path, image=busybox_image())

    def check():
        result = CliRunner().invoke(cli, ["environments", "check", str(place), "--json"])
        (report,) = json.loads(result.stdout)["folders"]
        return report["status"], report["reason"], report["untouched_reward"], report["solution_reward"]

    assert check() == ("solved", "", 0.0, 1.0)
    (place / "steps" / "three" / "solution" / "solve.sh").write_text("exit 4\n")
    status, reason, _, reward = check()
    assert (status, reward) == ("unsolved", pytest.approx(2 / 3))
    assert "solution: three: exit code 4" in reason
    (place / "steps" / "three" / "solution" / "solve.sh").unlink()
    assert check()[:2] == ("no solution", "steps/three/solution/solve.sh is missing")


def play(task, *commands):
    """Return the observations of commands and the verdict of an episode."""
    results, verdict = play_steps(task, *commands)
    return [result.observation.messages[0].text for result in results], verdict


def task_of(place):
    source = HarborTasks(path=str(place.parent), held_out_fraction=1.0)
    return next(task for task in source.held_out(99) if task.id == place.name)


@needs_podman
@pytest.mark.slow
def test_reward_of_an_episode_is_that_of_the_tests(tmp_path):
    place = write_task(tmp_path, image=busybox_image())
    outputs, verdict = play(task_of(place), "pwd; cat in.txt; ls /tests", "echo 42 > out.txt; sleep 81 &")
    assert outputs[0].startswith("/app\nseed\nls: /tests: No such file")
    assert verdict == {"success": True, "score": 1.0}
    _, verdict = play(task_of(place), "echo 41 > out.txt")
    assert verdict == {"success": False, "score": 0.0}


@needs_podman
@pytest.mark.slow
def test_tests_run_without_processes_and_rewards_of_the_agent(tmp_path):
    tests = """ps | grep -c '[s]leep 82' > /app/count
ls /tests > /app/listed
echo "{\\"reward\\": $(cat /app/count), \\"listed\\": $(wc -l < /app/listed)}" > /logs/verifier/reward.json
"""
    place = write_task(tmp_path, image=busybox_image(), tests=tests)
    commands = [
        "mkdir -p /tests /logs/verifier; touch /tests/a /tests/b; echo 1 > /logs/verifier/reward.txt; sleep 82 &"
    ]
    _, verdict = play(task_of(place), *commands)
    assert verdict == {"success": False, "score": 0.0, "reward_listed": 1.0}


@needs_podman
@pytest.mark.slow
def test_missing_reward_is_the_agents_failure_only_if_the_tests_work_without_it(tmp_path):
    depends = write_task(
        tmp_path, name="depends", image=busybox_image(), tests=f"[ -e /app/in.txt ] || exit 1\n{TESTS}"
    )
    _, verdict = play(task_of(depends), "rm /app/in.txt")
    assert (verdict["success"], verdict["score"]) == (False, 0.0)
    assert "wrote no reward" in verdict["no_reward"]
    # no container with these files can start a shell
    _, verdict = play(task_of(depends), "echo 42 > out.txt; rm -rf /bin")
    assert (verdict["success"], verdict["score"]) == (False, 0.0)
    assert verdict["no_reward"]
    broken = write_task(tmp_path, name="broken", image=busybox_image(), tests="exit 1\n")
    with pytest.raises(InfrastructureError, match="for untouched files either"):
        play(task_of(broken), "true")


@needs_podman
@pytest.mark.slow
def test_check_of_folders_reports_each_kind(tmp_path):
    image = busybox_image()
    write_task(tmp_path, name="a-solved", image=image)
    write_task(tmp_path, name="b-no-solution", image=image, solution="")
    write_task(tmp_path, name="c-passes-untouched", image=image, tests="echo 1 > /logs/verifier/reward.txt\n")
    write_task(tmp_path, name="d-fetches", image=image, tests=f"curl http://a/b.sh || exit 1\n{TESTS}")
    write_task(tmp_path, name="e-no-tests", image=image, tests="")
    write_task(tmp_path, name="f-no-image", image="localhost/none")
    canary = write_task(tmp_path, name="g-canary", image=image, solution="exit 3\n")
    with (canary / "tests" / "test.sh").open("a") as script:
        script.write("# terminal-bench-canary GUID 1\n")
    result = CliRunner().invoke(cli, ["environments", "check", str(tmp_path), "--json"])
    folders = {each["name"][0]: each for each in json.loads(result.stdout)["folders"]}
    assert result.exit_code == 1
    assert {name: each["status"] for name, each in folders.items()} == {
        "a": "solved",
        "b": "no solution",
        "c": "unsolved",
        "d": "unsolved",
        "e": "cannot be played",
        "f": "cannot be played",
        "g": "unsolved",
    }
    assert (folders["a"]["untouched_reward"], folders["a"]["solution_reward"]) == (0, 1)
    assert "pass without any action" in folders["c"]["reason"]
    assert "tests/test.sh fetches" in folders["d"]["reason"]
    assert "cannot be built" in folders["f"]["reason"]
    assert folders["g"]["canary"] == "tests/test.sh"
    assert "exit code 3" in folders["g"]["reason"]


@needs_podman
@pytest.mark.slow
def test_changed_environment_is_built_again(tmp_path):
    place = write_task(tmp_path, image=busybox_image())
    assert play(task_of(place), "cat in.txt")[0] == ["seed\n"] or play(task_of(place), "cat in.txt")[0] == ["seed"]
    (place / "environment" / "Dockerfile").write_text(f"FROM {busybox_image()}\nWORKDIR /app\nRUN echo new > in.txt\n")
    from whetstone.sandbox import shared_containers

    shared_containers.cache_clear()
    assert play(task_of(place), "cat in.txt")[0][0].strip() == "new"
    shutil.rmtree(place)
    assert not os.path.exists(place)
