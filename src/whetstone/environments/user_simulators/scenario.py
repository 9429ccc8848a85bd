"""Rule-based user simulator for scenarios: states the reason for the call, the identity, agreement, and goodbye.

It replaces a model if none is available. It reaches every state of a conversation, but does not digress like a person.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from whetstone.environments.protocol import Reply
from whetstone.tools.protocol import Episode

STOP, TRANSFER = "###STOP###", "###TRANSFER###"
"""Markers with which a simulated user ends a conversation, as in tau2."""
_WHO = re.compile(r"\b(name|email|e-mail|zip|who are you|identity|verify|authenticate)\b", re.IGNORECASE)
_DONE = re.compile(r"\b(anything else|something else|further assistance|is that all)\b", re.IGNORECASE)
_BYE = re.compile(
    r"\b(have an? \w+ (day|evening|night|week|weekend|one|time|rest)|good ?bye|take care|(you are|you're) all set)\b",
    re.IGNORECASE,
)
"""Pattern of a goodbye, which ends the conversation if the message has no question."""
_SURE = re.compile(r"\b(confirm|proceed|yes/no|\(yes\)|go ahead|shall i|would you like)\b", re.IGNORECASE)
_TRANSFERRED = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT"


class ScenarioUser:
    """Simulated user that replies by rules.

    The `scenario` in the task's private data has the replies: `reason_for_call`, `known_info`, `task_instructions`.

    Args:
        patience: Maximum number of replies.
    """

    def __init__(self, *, patience: int = 30) -> None:
        self.patience = patience
        self.scenario: Mapping[str, str] = {}
        self.answered = 0
        self.ended = ""

    def open(self, episode: Episode) -> Reply:
        """Return the reason for the call as the first message."""
        self.scenario, self.answered, self.ended = episode.task.private["scenario"], 0, ""
        return Reply(self.scenario["reason_for_call"])

    def answer(self, text: str) -> Reply:
        """Return the reply of the first rule that matches the agent's message."""
        self.answered += 1
        if _TRANSFERRED in text:
            return self._end(TRANSFER)
        if _DONE.search(text) or (_BYE.search(text) and "?" not in text):
            return self._end(STOP)
        if self.answered >= self.patience:
            return self._end("I have no more time.")
        if _WHO.search(text):
            return Reply(self.scenario["known_info"])
        if _SURE.search(text):
            return Reply("Yes, please.")
        return Reply(f"{self.scenario['reason_for_call']} {self.scenario.get('task_instructions') or ''}".strip())

    def verdict(self) -> Mapping[str, Any]:
        """Return whether the user ended the conversation, and the number of replies."""
        return {"user_ended": self.ended in (STOP, TRANSFER), "user_answers": self.answered}

    def close(self) -> None:
        """Do nothing; the user has no resources."""

    def _end(self, text: str) -> Reply:
        """Return a text as the user's last message, which ends the episode."""
        self.ended = text
        return Reply(text, ended=True)
