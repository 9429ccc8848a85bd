"""The page of the run with container tools agrees with the stored results: 64 episodes, and no container remains."""

import json

import container_episodes

STORED = json.loads((container_episodes.RESULTS / "raw" / "container_episodes.json").read_text())


def test_every_episode_was_trained_and_no_container_remains():
    for run in STORED["measured"]:
        assert (run["episodes"], run["invalid"], run["left"]) == (64, 0, 0)
        assert run["commands"] > 0


def test_page_has_the_stored_results():
    assert (container_episodes.RESULTS / "container_episodes.md").read_text() == container_episodes.page(STORED)


def test_expert_of_the_tasks_prints_the_file_and_answers():
    source = container_episodes.FileTasks()
    task = source.task(0)
    call = source.demonstrate(task, task.opening, ()).tool_calls[0]
    (name,) = task.private["files"]
    assert json.loads(call.arguments) == {"command": f"cat {name}"}
