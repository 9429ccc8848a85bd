"""Adapter for Jericho: interactive fiction from any story file that it supports, with the game's score if known.

Source: Jericho, arXiv:1909.05398.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whetstone.environments.dependencies import require_package
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.errors import RecipeError
from whetstone.trajectory import Task

_NEEDS = (require_package("jericho", "jericho"),)


class Jericho:
    """Game that plays one story of interactive fiction from its start.

    Args:
        story: Story file (`.z3`, `.z5`, `.z8`).
        max_steps: Number of commands after which the episode is truncated.

    Raises:
        RecipeError: If the file does not exist.
    """

    name = "jericho"
    needs = _NEEDS
    isolation: Isolation = "process"  # the interpreter is a library with one state for all

    def __init__(self, *, story: str, max_steps: int = 100) -> None:
        if not Path(story).is_file():
            raise RecipeError(f"jericho: {story}: no such file; set story to a .z3, .z5 or .z8 file")
        self.story, self.max_steps = story, max_steps
        self._env: Any = None
        self._info: Mapping[str, Any] = {}
        self.steps = 0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Restart the story and return its first text."""
        from jericho import FrotzEnv

        self._env = self._env or FrotzEnv(self.story)
        self._env.seed(int(task.private.get("seed", seed)) % 2**31)
        text, self._info = self._env.reset()
        self.steps = 0
        return GameObservation(str(text).strip())

    def act(self, command: str) -> GameObservation:
        """Execute one command and return the story's text and the change of its score."""
        text, reward, done, self._info = self._env.step(command)
        self.steps += 1
        late = self.steps >= self.max_steps and not done
        return GameObservation(str(text).strip(), float(reward), terminated=bool(done), truncated=late)

    def verdict(self) -> Mapping[str, Any]:
        """Return the score as a fraction of the maximum; 0 if the game has no known score.

        A victory is a success.
        """
        most = self._env.get_max_score() or 0
        score = max(0.0, min(1.0, self._info.get("score", 0) / most)) if most else 0.0
        return {"success": bool(self._env.victory()), "score": score, "steps": self.steps}

    def close(self) -> None:
        """Close the Z-machine interpreter of the story; the next `begin` starts a new one."""
        env, self._env = self._env, None
        if env is not None:
            env.close()
