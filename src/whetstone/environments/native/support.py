"""Customer service with a user who holds tools of his own: what is wrong may be on his side of the line, or on ours.

The agent sees the account and can change it; the user sees his phone and can change that, when he is told how. Neither
can do the other's part (dual control). Some of four faults of the phone and three of the account are put together.

The user is a script: he names his number when asked, does what he is told to in any words that name the thing and what
is to become of it, reports what he sees, and is content only when his connection works. To change what was not broken
is against the policy, whatever comes of it; to say or do again what has mended something changes nothing.

Easy to get wrong: "do not turn the vpn off" is no order to do so, and a question whether it is off is none, either.

Source: the idea is that of tau2-bench's telecom domain, arXiv:2506.07982; faults, tools and texts are ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from whetstone.environments.native.scripted import Scripted, call, say
from whetstone.environments.protocol import Reply
from whetstone.errors import ToolError
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

PHONE = {"airplane": "airplane mode on", "data": "mobile data off", "sim": "sim not seated", "vpn": "vpn on"}
"""Fault → how the phone shows it."""
TOLD = {
    "airplane": "Turn airplane mode off.",
    "data": "Turn mobile data on.",
    "sim": "Put the sim card in again.",
    "vpn": "Turn the vpn off.",
}
"""Fault → how the user is told to mend it; other words for the same do, too."""
_NAMED = {
    "airplane": re.compile(r"\b(?:air|aero)plane|\bflight mode"),
    "data": re.compile(r"\b(?:data|internet)\b"),
    "sim": re.compile(r"\bsim\b"),
    "vpn": re.compile(r"\bvpn\b"),
}
"""Fault → how its thing is named."""
_ORDER = re.compile(
    r"\b(?:turn|switch|set|put|make|take|pull|push|(?:de)?activate|(?:en|dis)able|disconnect|connect|re-?insert|insert"
    r"|re-?seat|remove|eject)\b"
)
_ON = re.compile(r"\b(?:on|activate|enable|connect)\b")
_OFF = re.compile(r"\b(?:off|deactivate|disable|disconnect)\b")
_OUT = re.compile(r"\b(?:out|remove|eject)\b")
_IN = re.compile(r"\b(?:in|into|again|back|re-?insert|insert|re-?seat)\b")
_NOT = re.compile(r"\b(?:not|never|without|nor)\b|n['’]t\b")
_TELLS = re.compile(r"(?:is|are|was|has|have|did|does|do you|what|which|why|where|how|who)\b|(?:i|we)\b(?!.*\byou\b)")
"""What begins a question, or a report of who speaks: neither is an order."""
_CLAUSE = re.compile(r"[.!;:\n]|(?<=\?)|,|\b(?:and|then|but|also|or)\b")
_TRIES = re.compile(r"\b(?:try|test|check|works?|working|online|reload|refresh|restart|reboot)\b")
_SHOWS = re.compile(r"\b(?:shows?|see|display|screen|settings?|status|icons?)\b")
ACCOUNT = {"suspended": "resume_line", "empty": "refill_data", "roaming": "allow_roaming"}
"""Fault → the tool that mends it."""
_STATES = {"suspended": ("active", "suspended"), "empty": ("5 gb", "0 gb"), "roaming": ("allowed", "blocked")}
_NAMES = ("Ann Lee", "Ben Cho", "Cleo Ray", "Dan Fox", "Eva Sun", "Finn Oak")


class _Line:
    """What both sides stand on."""

    def __init__(self, task: Task) -> None:
        private = task.private
        self.number: str = private["number"]
        self.person: str = private["person"]
        self.faults: set[str] = set(private["faults"])
        self.at_first = frozenset(self.faults)
        self.collateral = 0
        self.looked_up = False
        self.content = False

    def mend(self, fault: str) -> None:
        """Take a fault away; what never was one is done all the same, and counted."""
        self.faults.discard(fault)
        self.collateral += fault not in self.at_first

    def break_down(self, fault: str) -> None:
        """Make a fault where there may be none, and count it."""
        self.faults.add(fault)
        self.collateral += 1


def _line(episode: Episode) -> _Line:
    if "support" not in episode.shared:
        episode.shared["support"] = _Line(episode.task)
    line: _Line = episode.shared["support"]
    return line


class SupportDesk:
    """The agent's tools: `find_account`, `resume_line`, `refill_data`, `allow_roaming`."""

    effects = "read"

    def __init__(self) -> None:
        self._line: _Line | None = None

    def open(self, episode: Episode) -> None:
        """At the desk."""
        self._line = _line(episode)

    def find_account(self, number: str) -> str:
        """Look up an account by its number.

        Args:
            number: The phone number.
        """
        line = self._of(number)
        line.looked_up = True
        said = {fault: states[fault in line.faults] for fault, states in _STATES.items()}
        return f"{line.person}, line {said['suspended']}, data {said['empty']}, roaming {said['roaming']}"

    def resume_line(self, number: str) -> str:
        """Resume a suspended line.

        Args:
            number: The phone number.
        """
        return self._mended("suspended", number)

    def refill_data(self, number: str) -> str:
        """Give a line whose data is used up new data.

        Args:
            number: The phone number.
        """
        return self._mended("empty", number)

    def allow_roaming(self, number: str) -> str:
        """Allow a line for which it is blocked to roam.

        Args:
            number: The phone number.
        """
        return self._mended("roaming", number)

    def verdict(self) -> Mapping[str, Any]:
        """A success where the connection works, the user is content, and nothing was changed that was not broken."""
        assert self._line is not None
        line = self._line
        works = not line.faults
        return {
            "success": works and line.content and line.collateral == 0,
            "works": works,
            "user_content": line.content,
            "collateral": line.collateral,
        }

    def _of(self, number: str) -> _Line:
        assert self._line is not None
        if number != self._line.number:
            raise ToolError(f"there is no account {number}"[:60])
        return self._line

    def _mended(self, fault: str, number: str) -> str:
        line = self._of(number)
        if not line.looked_up:
            raise ToolError("look up the account first")
        line.mend(fault)
        return "done"


class SupportUser:
    """The user: a script with a phone.

    Args:
        patience: How often he answers before he hangs up.
    """

    def __init__(self, *, patience: int = 14) -> None:
        self.patience = patience
        self._line: _Line | None = None
        self.greeting = ""
        self.answered = 0

    def open(self, episode: Episode) -> Reply:
        """What is wrong, as he sees it."""
        self._line, self.answered = _line(episode), 0
        return Reply(episode.task.private["greeting"])

    def answer(self, text: str) -> Reply:
        """He does what he is told, and says what he sees."""
        assert self._line is not None
        line, said = self._line, text.lower()
        self.answered += 1
        if self.answered > self.patience:
            return Reply("I give up.", ended=True)
        told = orders(said)
        for fault, right in told.items():
            line.mend(fault) if right else line.break_down(fault)
        tries = _TRIES.search(said)
        if not line.faults and (told or tries):
            line.content = True
            return Reply("It works now, thank you.", ended=True)
        if told:
            return Reply("Done, but it does not work yet.")
        if re.search(r"\bnumber\b", said):
            return Reply(f"My number is {line.number}.")
        if _SHOWS.search(said):
            shown = [words for fault, words in PHONE.items() if fault in line.faults]
            return Reply(f"It shows {', '.join(shown)}." if shown else "It shows nothing special.")
        return Reply("It still does not work." if tries else "I do not understand.")

    def close(self) -> None:
        """He is gone."""


def orders(said: str) -> dict[str, bool]:
    """What of the phone a text of small letters tells somebody to change: fault → whether to what it should be in the
    end.

    >>> orders("first switch off airplane mode, and don't turn the vpn off. take the sim out and put it back in")
    {'airplane': True, 'sim': True}
    """
    found: dict[str, bool] = {}
    for sentence in re.split(r"(?<=[.!?;\n])", said):
        ordered, meant = False, ""  # an order's verb, and what it was about, hold for the clauses behind it
        for clause in map(str.strip, _CLAUSE.split(sentence)):
            told = _NOT.search(clause) is None and _TELLS.match(clause) is None
            ordered = told and (ordered or _ORDER.search(clause) is not None)
            named = [fault for fault, name in _NAMED.items() if name.search(clause)]
            about = named or ([meant] if meant and re.search(r"\bit\b", clause) else [])
            for fault in about if ordered else ():
                right = _right(fault, clause)
                found |= {} if right is None else {fault: right}
            meant = named[-1] if named else meant
    return found


def _right(fault: str, clause: str) -> bool | None:
    """Whether an order brings a thing to where it should be; None where it says neither."""
    if fault == "sim":
        return True if _IN.search(clause) else False if _OUT.search(clause) else None
    on, off = _ON.search(clause) is not None, _OFF.search(clause) is not None
    return None if on is off else off if fault in ("airplane", "vpn") else on


class SupportTasks(Scripted):
    """One, two and three things wrong at once.

    Args:
        seed: As of `Generated`.
        levels: As of `Generated`.
    """

    name = "support"

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        faults = draw.sample([*PHONE, *ACCOUNT], level)
        number = "".join(str(draw.randint(0, 9)) for _ in range(6))
        script = [say("What is your number?"), call("find_account", number=number)]
        script += [call(tool, number=number) for fault, tool in ACCOUNT.items() if fault in faults]
        script.append(say("What does your phone show?"))
        told = [say(words) for fault, words in TOLD.items() if fault in faults]
        private = {
            "number": number,
            "person": draw.choice(_NAMES),
            "faults": faults,
            "greeting": draw.choice(("My phone has no internet.", "I am offline.", "Nothing loads on my phone.")),
            "script": [*script, *(told or [say("Please try again.")])],
        }
        sides = ("phone" if set(faults) & set(PHONE) else "", "account" if set(faults) & set(ACCOUNT) else "")
        return Task("", "", private, {"kind": " and ".join(filter(None, sides))})
