"""How is each command called? A few lines that can be typed as they stand, shown below its options by `--help`."""

from __future__ import annotations

from collections.abc import Mapping

import click

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "bisect": (
        "whetstone bisect runs/demo runs/second",
        "whetstone bisect runs/demo runs/second --json",
    ),
    "chat": (
        "whetstone chat runs/demo",
        "whetstone chat smollm2-135m --temperature 0.2",
    ),
    "compare": (
        "whetstone compare demo advantage=group_relative,leave_one_out --seeds 5",
        "whetstone compare shop.yaml other.yaml --budget episodes=2000",
    ),
    "compare-logs": ("whetstone compare-logs ours.json theirs.json",),
    "completion": (
        "whetstone completion bash >> ~/.bashrc",
        "whetstone completion zsh >> ~/.zshrc",
        "whetstone completion fish > ~/.config/fish/completions/whetstone.fish",
    ),
    "data check": ("whetstone data check chats.jsonl demo",),
    "data export": ("whetstone data export runs/demo -o solved.jsonl --top-k-per-task 4 --min-reward 1",),
    "doctor": (
        "whetstone doctor",
        "whetstone doctor shop.yaml",
    ),
    "environments check": ("whetstone environments check frozen_lake --reward outcome",),
    "environments serve": ("whetstone environments serve frozen_lake --port 8100",),
    "evaluate": (
        "whetstone evaluate runs/demo --episodes 200",
        "whetstone evaluate demo --samples 8 --temperature 1",
        "whetstone evaluate demo --policy http://127.0.0.1:8000/v1 --model mine",
    ),
    "export": ("whetstone export runs/demo --output-dir models/demo",),
    "import": ("whetstone import trl config.yaml --output shop.yaml",),
    "live": (
        "whetstone live runs/demo",
        "whetstone live shop.yaml live.scorer=my_package.scoring:scorer --paused",
    ),
    "mcp": ("whetstone mcp calculator my_package.tools:search",),
    "models": (
        "whetstone models",
        "whetstone models --json",
    ),
    "models add": ("whetstone models add smollm2-135m",),
    "new": ("whetstone new tool shop",),
    "papers": (
        "whetstone papers",
        "whetstone papers --paper 2402.03300",
    ),
    "plan": (
        "whetstone plan demo --gpus 64 --model 8b",
        "whetstone plan shop.yaml reinforcement.admit_ahead=2 --gpus 1024 --gpu h200 --model 32b",
        "whetstone plan shop.yaml --gpus 8 --model 8b --rates runs/shop",
    ),
    "recipes": ("whetstone recipes",),
    "recipes show": ("whetstone recipes show demo with=dapo reinforcement.steps=30",),
    "replay": (
        "whetstone replay runs/demo --updates",
        "whetstone replay runs/demo reward=my_package.rewards:mine",
    ),
    "rewards audit": ("whetstone rewards audit demo --tasks 12",),
    "rewards list": ("whetstone rewards list",),
    "rewards train-model": ("whetstone rewards train-model demo --model models/judge",),
    "rollout": (
        "whetstone rollout demo -n 5",
        "whetstone rollout demo --expert",
    ),
    "serve": (
        "whetstone serve runs/demo",
        "whetstone serve runs/demo --record said.jsonl --port 0",
    ),
    "show": (
        "whetstone show runs/demo",
        "whetstone show runs/demo --trajectory 'group-3/TASK#0'",
    ),
    "tasks score": ("whetstone tasks score runs/demo --output-file chosen.json",),
    "tasks show": ("whetstone tasks show arithmetic -n 5 --held-out",),
    "train": (
        "whetstone train demo",
        "whetstone train demo with=gigpo reinforcement.steps=30 seed=1 --run-dir runs/gigpo",
        "whetstone train runs/demo --resume",
        "whetstone train runs/demo --resume reinforcement.steps=200 reinforcement.learning_rate=1e-5",
        "whetstone train demo start_from=runs/demo@50 seed=1 --run-dir runs/second",
        "whetstone train demo trackers=tensorboard",
    ),
    "view": (
        "whetstone view runs/demo",
        "whetstone view runs/demo runs/second",
        "whetstone view runs --host 0.0.0.0 --keys keys.json",
    ),
    "why": (
        "whetstone why runs/demo",
        "whetstone why runs/demo --step 12",
        "whetstone why runs/demo 'group-3/TASK#0' --turn 1",
        "whetstone why runs/demo --slow",
    ),
}
"""By command."""


def with_examples(command: click.Command, name: str) -> click.Command:
    """The command, its subcommands with it, with its examples in its help.

    Args:
        name: As it is called behind `whetstone`.
    """
    lines = EXAMPLES.get(name)
    if lines is not None:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    if isinstance(command, click.Group):
        for below, other in command.commands.items():
            with_examples(other, f"{name} {below}")
    return command
