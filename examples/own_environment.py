"""A custom environment: find a number from "higher" and "lower", with tasks and an expert.

python examples/own_environment.py [RUN_DIR]
"""

import random
import sys
from collections.abc import Sequence
from typing import Any

import whetstone
from whetstone.chat import Message, assistant
from whetstone.environments import GameObservation
from whetstone.tasks import Generated
from whetstone.training import RunSummary


class Guess:
    """Find a number. Ends: terminated on the right one; truncated when the guesses run out."""

    highest = 9

    @property
    def instruction(self) -> str:
        """Instruction for the model."""
        return f"Guess a number from 1 to {self.highest}."

    def begin(self, task: whetstone.Task, seed: int) -> GameObservation:
        """Start an episode with the number of the task."""
        self.number, self.guesses, self.found = task.private["number"], 0, False
        return GameObservation("guess")

    def act(self, command: str) -> GameObservation:
        """Evaluate one guess."""
        self.guesses += 1
        self.found = command == str(self.number)
        if self.found:
            return GameObservation("right", reward=1.0, terminated=True)
        higher = command.isdigit() and int(command) < self.number
        return GameObservation("higher" if higher else "lower", reward=0.0, truncated=self.guesses == 5)

    def verdict(self) -> dict[str, Any]:
        """Return the outcome, which is the reward with `reward: verdict`."""
        return {"success": self.found, "score": float(self.found)}

    def close(self) -> None:
        """Release resources; there are none."""


class Numbers(Generated):
    """Tasks: numbers to find."""

    name, held_out_share = "numbers", 4
    highest = 9

    def make(self, draw: random.Random, level: int) -> whetstone.Task:
        """Sample a task."""
        return whetstone.Task("", "", {"number": draw.randint(1, self.highest), "round": draw.randrange(1000)})

    def demonstrate(self, task: whetstone.Task, conversation: Sequence[Message], tools: Any) -> Message:
        """Guess the middle of the remaining range (binary search)."""
        low, high = 1, self.highest
        texts = [message.text for message in conversation if message.role != "system"]
        for guess, answer in zip(texts[1::2], texts[2::2], strict=False):
            low, high = (int(guess) + 1, high) if answer == "higher" else (low, int(guess) - 1)
        return assistant(str((low + high) // 2))


RECIPE = {
    "policy": {"tiny": {"vocab_size": 300, "hidden_size": 64, "num_layers": 2, "num_heads": 2, "context_length": 128}},
    "chat": {"format": "compact"},
    "tasks": {"source": Numbers},
    "environment": {"name": Guess, "actions": "text", "max_turns": 6},
    "reward": "verdict",
    "supervised": {"steps": 20},
    "rollout": {"group_size": 4, "max_new_tokens": 4},
    "reinforcement": {"steps": 10, "tasks_per_step": 8},
    "evaluation": {"episodes": 50},
}


def main(run_dir: str = "runs/guess", **sections: Any) -> RunSummary:
    """Train in the environment."""
    run = whetstone.train(whetstone.load_recipe(RECIPE, **sections), run_dir)
    print(f"{run.before.success:.0%} → {run.after.success:.0%}, in {run.after.turns:.1f} guesses")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
