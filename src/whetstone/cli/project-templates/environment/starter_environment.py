"""An environment, and tasks for it with an expert."""

import random
from collections.abc import Sequence
from typing import Any

from whetstone import Task
from whetstone.chat import Message, assistant
from whetstone.environments import GameObservation
from whetstone.tasks import Generated

LENGTH = 10


class Corridor:
    """Walk to the door. Ends: terminated at the door; truncated when the steps run out."""

    instruction = "Walk to the door: say left or right."

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start this task and return the first observation."""
        self.place, self.door, self.steps = int(task.private["start"]), int(task.private["door"]), 0
        return self._seen()

    def act(self, command: str) -> GameObservation:
        """Apply one action."""
        step = {"left": -1, "right": 1}.get(command.strip().lower())
        self.steps += 1
        self.place = min(LENGTH - 1, max(0, self.place + (step or 0)))
        if self.place == self.door:
            return GameObservation("the door", reward=1.0, terminated=True)
        return self._seen("say left or right; " if step is None else "")

    def verdict(self) -> dict[str, Any]:
        """Return the outcome, which is the reward with `reward: verdict`."""
        success = self.place == self.door
        return {"success": success, "score": float(success)}

    def close(self) -> None:
        """Release resources; there are none."""

    def _seen(self, remark: str = "") -> GameObservation:
        text = f"{remark}you {self.place} door {self.door}"
        return GameObservation(text, reward=0.0, truncated=self.steps == LENGTH)


class Corridors(Generated):
    """Tasks: a start position, and the position of the door."""

    name, most, held_out_share = "starter", 1, 5

    def make(self, draw: random.Random, level: int) -> Task:
        """Sample two different positions."""
        start, door = draw.sample(range(LENGTH), 2)
        return Task("", "", {"start": start, "door": door})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Any) -> Message:
        """Walk straight to the door."""
        return assistant("right" if task.private["start"] < task.private["door"] else "left")
