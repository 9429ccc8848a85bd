"""Tool with a state of three lamps."""

import json
from random import Random
from typing import Literal


class Lamps:
    """Three lamps."""

    effects = "read"

    def open(self, episode):
        self.lamps = {name: name in episode.task.private["on"] for name in "abc"}
        self.draw = Random(episode.seed)

    def tools(self):
        return [self.toggle, self.look]

    def toggle(self, lamp: Literal["a", "b", "c"]) -> str:
        """Toggle a lamp.

        Args:
            lamp: The lamp.
        """
        self.lamps[lamp] = not self.lamps[lamp]
        return "done"

    def look(self) -> str:
        """Look at all lamps."""
        return json.dumps(self.lamps)

    def verdict(self):
        return {"state": dict(self.lamps)}
