"""Export of environments as OpenEnv server, verifiers taskset and Harbor folders, and their use by those packages."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.local_servers import installed_python, started
from whetstone.chat import assistant
from whetstone.cli.main import cli
from whetstone.environments.exchange import ExportedAction, ExportedEpisode, read_export, replay_export
from whetstone.environments.exchange.container_episode import grade_actions, parse_action, start_episode_server
from whetstone.environments.harbor.task_folder import read_folder
from whetstone.environments.registry import TASKS_OF_WORLDS
from whetstone.environments.remote.openenv import OpenEnv
from whetstone.environments.remote.verifiers import Verifiers, VerifiersTasks
from whetstone.errors import RecipeError, TaskError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.trajectory import Task

ROOT = Path(__file__).resolve().parents[2]


def export(folder, kind, environment="frozen_lake", *more):
    """Export three tasks of an environment and return the folder."""
    words = ["environments", "export", environment, *more, "--to", kind, "-o", str(folder), "--num-tasks", "3"]
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder


def expert_actions(exported, index, name="frozen_lake"):
    """Return the messages of the expert for a task."""
    source, one = TASKS_OF_WORLDS[name](), exported.tasks[index]

    async def play():
        episode, actions = ExportedEpisode(exported, index), []
        await episode.start()
        conversation = [*episode.opening]
        while not episode.done:
            actions.append(source.demonstrate(one.task, conversation, episode.tools))
            for action in ExportedAction.from_message(actions[-1]):
                conversation += [actions[-1], *(await episode.execute_action(action)).messages]
        await episode.close()
        return actions

    return asyncio.run(play())


# ------------------------------------------------------------ without the packages


def test_export_has_the_tasks_of_the_source_and_repeats_episodes(tmp_path):
    exported = read_export(export(tmp_path / "fl", "openenv") / "environment.json")
    source = TASKS_OF_WORLDS["frozen_lake"]()
    assert [one.task for one in exported.tasks] == [source.task(index) for index in range(3)]
    for index in range(3):
        actions = [
            action for message in expert_actions(exported, index) for action in ExportedAction.from_message(message)
        ]
        assert asyncio.run(replay_export(exported, index, actions)) == 1.0
        assert asyncio.run(replay_export(exported, index, actions[:-1])) == 0.0
        assert asyncio.run(replay_export(exported, index, [])) == 0.0


def test_action_after_the_end_has_no_effect(tmp_path):
    exported = read_export(export(tmp_path / "fl", "openenv") / "environment.json")

    async def play():
        episode = ExportedEpisode(exported, 0)
        await episode.start()
        for message in expert:
            result = await episode.execute_action(*ExportedAction.from_message(message))
        late = await episode.call_tool("act", {"command": "up"})
        return result, late, await episode.compute_reward()

    expert = expert_actions(exported, 0)
    result, late, reward = asyncio.run(play())
    assert (result.done, result.reward, reward) == (True, 1.0, 1.0)
    assert (late.failed, late.done, late.reward) == (True, True, None)


def test_harbor_folders_are_read_and_grade_recorded_actions(tmp_path):
    folders = sorted(export(tmp_path / "fl", "harbor").iterdir())
    assert len(folders) == 3
    for place in folders:
        folder = read_folder(place)
        (step,) = folder.steps
        assert (folder.problems, step.agent_user, step.verifier_user) == ((), "agent", "root")
        assert '`act act \'{"command": "<string>"}\'`' in folder.steps[0].instruction
        commands = folder.steps[0].solution_script.read_text().splitlines()[1:]
        actions = [json.loads(command.removeprefix("act act ").strip("'")) for command in commands]
        lines = [json.dumps({"tool": "act", "arguments": json.dumps(action)}) for action in actions]
        recorded = tmp_path / f"{place.name}.jsonl"
        assert grade_actions(place / "tests", recorded) == 0.0
        recorded.write_text("\n".join(lines) + "\n")
        assert grade_actions(place / "tests", recorded) == 1.0


def test_program_act_plays_an_episode_over_its_socket(tmp_path):
    place = min(export(tmp_path / "fl", "harbor").iterdir())
    socket, recorded = str(tmp_path / "s"), tmp_path / "actions.jsonl"
    program = (place / "environment" / "act").read_text().replace("/tmp/.episode.sock", socket)
    (tmp_path / "act").write_text(program)
    (tmp_path / "act").chmod(0o755)
    script = (place / "solution" / "solve.sh").read_text().replace("\nact ", f"\n{tmp_path}/act ")

    async def play():
        server = await start_episode_server(place / "environment", socket, recorded)
        process = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=subprocess.PIPE)
        output = (await process.communicate())[0].decode()
        late = await asyncio.create_subprocess_exec(
            str(tmp_path / "act"), "--message", "late", stdout=subprocess.DEVNULL
        )
        await late.wait()
        server.close()
        return output, late.returncode

    output, late = asyncio.run(play())
    assert output.endswith("The episode is over.\n")
    assert late == 1
    assert len(recorded.read_text().splitlines()) == script.count("/act act")
    assert grade_actions(place / "tests", recorded) == 1.0


@pytest.mark.parametrize("line", ["[]", "{}", '{"text": 1}', '{"tool": "a"}', '{"text": "a", "tool": "b"}', "no"])
def test_invalid_action_in_a_container_is_refused(line):
    with pytest.raises(ValueError):
        parse_action(line)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["frozen_lake", "actions=text", "--to", "verifiers"], "needs tools; set actions=call"),
        (["tables", "--to", "openenv"], "its reward is exact_number, not a verdict"),
        (["frozen_lak", "--to", "openenv"], "frozen_lake"),
    ],
)
def test_environment_that_cannot_be_exported_is_refused(tmp_path, words, message):
    result = CliRunner().invoke(cli, ["environments", "export", *words, "-o", str(tmp_path / "x")])
    assert isinstance(result.exception, RecipeError | SystemExit)
    assert message in f"{result.exception} {result.output}"
    assert not (tmp_path / "x").exists()


def test_folder_that_exists_is_not_replaced(tmp_path):
    with pytest.raises(RecipeError, match="exists already"):
        CliRunner().invoke(
            cli,
            ["environments", "export", "frozen_lake", "--to", "openenv", "-o", str(tmp_path)],
            catch_exceptions=False,
            standalone_mode=False,
        )


def test_file_of_another_version_is_refused(tmp_path):
    file = tmp_path / "environment.json"
    for text, message in (('{"format": 9}', "format 9, expected 1"), ("{}", "not an exported"), (None, "No such file")):
        if text:
            file.write_text(text)
        else:
            file.unlink()
        with pytest.raises(TaskError, match=message):
            read_export(file)


# ------------------------------------------------------------ the packages themselves

CLIENT = """
import asyncio, json, sys
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient
from openenv.core.env_server.mcp_types import CallToolAction
request = json.loads(sys.argv[1])

async def play(seed, actions):
    client = MCPToolClient(base_url=request["url"]) if request["tools"] else GenericEnvClient(base_url=request["url"])
    async with client:
        await client.reset(seed=seed)
        names = [tool.name for tool in await client.list_tools()] if request["tools"] else []
        rewards = []
        for action in actions:
            sent = CallToolAction(tool_name="act", arguments=action) if request["tools"] else {"message": action}
            result = await client.step(sent)
            rewards.append([result.reward, result.done])
        return names, rewards

print(json.dumps([asyncio.run(play(seed, actions)) for seed, actions in enumerate(request["actions"])]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("actions", ["call", "text"])
def test_openenv_plays_an_exported_environment(tmp_path, monkeypatch, actions):
    python = installed_python("openenv", "openenv whetstone-rl")
    folder = export(tmp_path / "fl", "openenv", "frozen_lake", f"actions={actions}")
    exported = read_export(folder / "environment.json")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT / 'src'}")
    calls = actions == "call"
    played = [expert_actions(exported, index) for index in range(3)]
    sent = [[json.loads(m.tool_calls[0].arguments) if calls else m.text for m in messages] for messages in played]
    with started(python, "server.app:app") as url:
        request = json.dumps({"url": url, "tools": calls, "actions": sent})
        client = subprocess.run([python, "-c", CLIENT, request], capture_output=True, text=True, check=False)
        assert client.returncode == 0, client.stderr
        for (names, rewards), messages in zip(json.loads(client.stdout), played, strict=True):
            assert names == (["act", "reply"] if calls else [])
            assert [done for _, done in rewards] == [False] * (len(messages) - 1) + [True]
            assert rewards[-1][0] == 1.0
        for index, messages in enumerate(played):
            left = iter(messages)
            make = lambda: OpenEnv(url=url, observation_field="result" if calls else "text")  # noqa: E731
            task = Task("o", "", {"reset": {"task": index}})
            done = asyncio.run(play_with_policy(make, task, lambda *_, left=left: next(left), seed=0)).trajectory
            assert done.opening[0].text == exported.tasks[index].opening[0].text
            assert (done.ended, done.final["success"]) == ("terminated", True)


@pytest.mark.slow
def test_verifiers_plays_an_exported_environment(tmp_path, monkeypatch):
    python = installed_python("verifiers", "verifiers whetstone-rl")
    folder = export(tmp_path / "lakes", "verifiers")
    exported = read_export(folder / "lakes" / "environment.json")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT / 'src'}")
    tasks = VerifiersTasks(taskset="lakes", python=python, held_out_fraction=1.0).held_out(3)
    assert [task.id for task in tasks] == [one.task.id for one in exported.tasks]
    for index, task in enumerate(tasks):
        messages = [*expert_actions(exported, index), assistant("done")]
        for actions, success in ((messages, True), ([messages[0], assistant("done")], len(messages) == 2)):
            left = iter(actions)
            make = lambda: Verifiers(taskset="lakes", python=python)  # noqa: E731
            done = asyncio.run(play_with_policy(make, task, lambda *_, left=left: next(left), seed=0)).trajectory
            assert done.opening[0].text == exported.tasks[index].opening[0].text
            assert (done.final["success"], done.final["verdict"]) == (success, float(success))


@pytest.mark.slow
def test_harbor_reads_exported_folders(tmp_path):
    python = installed_python("harbor", "harbor")
    place = min(export(tmp_path / "fl", "harbor").iterdir())
    program = (
        "import json, sys; from harbor.models.task.task import Task; task = Task(sys.argv[1]); c = task.config; "
        "print(json.dumps([task.instruction, c.agent.user, c.environment.healthcheck.command, c.environment.memory_mb, "
        "str(task.paths.discovered_test_path), str(task.paths.discovered_solve_path)]))"
    )
    read = subprocess.run([python, "-c", program, str(place)], capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    instruction, user, command, memory, tests, solve = json.loads(read.stdout)
    assert instruction.strip() == read_folder(place).steps[0].instruction.strip()
    assert (user, command, memory) == ("agent", "/opt/episode/start", 2048)
    assert (tests, solve) == (str(place / "tests" / "test.sh"), str(place / "solution" / "solve.sh"))
