"""Tasks of curious play: each state is reached by few calls, replays, and pays only who reaches it."""

import asyncio

import pytest
from click.testing import CliRunner

from support.lamps import Lamps
from support.small import SMALL
from whetstone.chat import ToolCall, assistant
from whetstone.cli.tasks import tasks_command
from whetstone.environments import ToolEnvironment
from whetstone.errors import TaskError
from whetstone.evaluation import TaskExplorer
from whetstone.evaluation.environment_checks.play_episode import play_with_policy, replay_actions
from whetstone.evaluation.task_exploration import describe_changes
from whetstone.rewards.environment_state.state import state
from whetstone.tasks.jsonl import Jsonl
from whetstone.trajectory import Task

START = Task("lamps", "An old goal.", {"on": [], "digest": "old", "predicates": ["old"]}, {"room": "hall"})


class Dice(Lamps):
    """A lamp that shows a random number."""

    def tools(self):
        return [self.roll]

    def roll(self) -> str:
        """Roll."""
        self.lamps["a"] = self.draw.random()
        return "done"


def explore(tools=Lamps, episodes=60, start=START, **options):
    explorer = TaskExplorer(lambda: ToolEnvironment(tools=[tools()]), **{"max_random": 1.0, **options})
    return asyncio.run(explorer.explore_tasks(start, episodes)), explorer


def score(task, actions):
    played = asyncio.run(
        play_with_policy(
            lambda: ToolEnvironment(tools=[Lamps()]), task, replay_actions(actions), seed=5, max_turns=len(actions)
        )
    )
    return asyncio.run(state(played.trajectory, task)).value


def solution(task):
    return [assistant("", ToolCall(call["name"], call["arguments"])) for call in task.private["solution"]]


def test_every_state_is_found_with_the_fewest_calls_that_reach_it():
    tasks, _ = explore()
    changes = {tuple(task.prompt.splitlines()[1:]): task for task in tasks}
    wanted = {
        tuple(f"- {name} is true" for name in "abc" if name in on) for on in ("a", "b", "c", "ab", "ac", "bc", "abc")
    }
    assert set(changes) == wanted
    for lines, task in changes.items():
        assert len(task.private["solution"]) == len(lines) == int(task.tags["difficulty"])
        assert all(call["name"] == "toggle" for call in task.private["solution"])
        assert (task.tags["room"], "predicates" in task.private) == ("hall", False)
    assert len({task.id for task in tasks}) == 7


def test_reward_pays_the_calls_of_a_task_and_no_others():
    tasks, _ = explore()
    for task in tasks:
        for other in tasks:
            assert score(task, solution(other)) == (task is other)
        assert score(task, [assistant("done")]) == 0


def test_same_seed_gives_the_same_tasks():
    assert explore(seed=3)[0] == explore(seed=3)[0] != explore(seed=4)[0]


def test_gates_count_what_they_reject():
    tasks, explorer = explore(episodes=60)
    assert sum(explorer.rejected.values()) == 60 - len(tasks)
    assert set(explorer.rejected) == {"unchanged", "known"}
    few, explorer = explore(episodes=60, max_random=0.0, random_players=200)
    assert (few, explorer.rejected["random"]) == ([], 7)
    tasks, explorer = explore(episodes=60, max_changes=1)
    assert (len(tasks), explorer.rejected["many_changes"]) == (3, 4)


def test_state_that_depends_on_chance_is_no_goal():
    tasks, explorer = explore(Dice, episodes=5)
    assert tasks == []
    assert explorer.rejected["not_replayable"] >= 1


def test_environment_without_a_state_is_an_error():
    class Plain(Lamps):
        def verdict(self):
            return {"success": True}

    with pytest.raises(TaskError, match="has no `state`; return it in verdict"):
        explore(Plain)


def test_changes_are_named_by_their_path():
    before = {"a": [1, {"b": 2}], "c": None}
    assert describe_changes(before, before) == []
    assert describe_changes(before, {"a": [1, {"b": 3}, 4]}) == ["a.1.b is 3", "a.2 is 4", "c is removed"]


def test_command_writes_tasks_that_a_recipe_reads(tmp_path):
    path = tmp_path / "explored.jsonl"
    words = ["environment.tools=[support.lamps:Lamps]", "--starts", "1", "--episodes", "40", "--max-random", "1"]
    tasks = tmp_path / "start.jsonl"
    tasks.write_text('{"prompt": "?", "private": {"on": ["a"]}}\n{"prompt": "??", "private": {"on": []}}\n')
    source = [f"tasks={{source: jsonl, path: {tasks}, held_out_fraction: 0.5}}"]
    done = CliRunner().invoke(
        tasks_command, ["explore", "demo", *SMALL, "ablations=null", *source, *words, "--output-file", str(path)]
    )
    assert done.exit_code == 0, done.output
    assert "7 tasks from 40 episodes" in done.output
    read = Jsonl(path=str(path), held_out_fraction=0.5)
    (task, *_) = read.held_out(3)
    assert task.prompt.startswith("Reach this state, and change nothing else:\n- ")
    assert score(task, solution(task)) == 1
