"""What do critics foretell? A column for each head, its slow copy, and what either says behind a turn that was cut off.

Easy to get wrong: a turn without action tokens has nothing a critic is asked in front of; it is worth what comes
behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whetstone.errors import CreditError
from whetstone.learning.columns.declaration import Column, RunCapabilities, column

if TYPE_CHECKING:
    from whetstone.learning.columns.batch import Columns

VALUE_POSITIONS = {
    "values": "first",
    "twin_values": "first",
    "potentials": "first",
    "action_values": "last",
    "twin_action_values": "last",
    "contributions": "last",
    "token_values": "every",
}
"""What critics can foretell, and in front of which of a turn's action tokens they are asked."""


STATE_VALUES = ("values", "twin_values", "token_values")
"""Those of them that are what a state is worth, with what is earned behind it."""


def critic_heads(columns: Iterable[str], *, ensemble: int = 1) -> tuple[str, ...]:
    """The heads a critic must have to give these columns: those that are trained, then slow copies.

    Args:
        ensemble: Members of each; those behind the first are called `values#2`, `values#3`, …
    """
    asked = [name.removeprefix("last_") for name in columns]
    asked = [name for name in asked if name.removeprefix("slow_") in VALUE_POSITIONS]
    trained = sorted({name.removeprefix("slow_") for name in asked})
    first = (*trained, *sorted({name for name in asked if name.startswith("slow_")}))
    return tuple(name if k == 1 else f"{name}#{k}" for name in first for k in range(1, ensemble + 1))


def kind_of_head(head: str) -> str:
    """What a head foretells, whichever member of an ensemble it is: `values` for `values#2`."""
    return head.partition("#")[0]


def _several(run: RunCapabilities) -> str | None:
    critic = run.recipe.critic
    return None if critic is not None and critic.ensemble_size > 1 else "set critic.ensemble_size to 2 or more"


@column(
    "turn",
    reads_models=True,
    provided_by="`critic.ensemble_size: 5`, where `advantage` asks for values of states",
    requires=_several,
)
def value_deviations(batch: Columns) -> Tensor:
    """Population standard deviation of the values of a critic ensemble at the start of each turn, in units of return;
    0 for a turn without action tokens."""
    known = [head for head in batch.heads if kind_of_head(head) in STATE_VALUES]
    if not known:
        raise CreditError("value_deviations: no critic says what a state is worth; advantage: turn_gae asks for one")
    apart = batch.members(kind_of_head(known[0])).std(0, correction=0)
    found = torch.zeros(batch.count("turn"), dtype=torch.float64)
    asked = batch.asked_at("first")
    found[batch["turn"][asked]] = apart[asked]
    return found


def _critic(run: RunCapabilities) -> str | None:
    return None if run.recipe.critic is not None else "a critic would say it: set critic: {}"


def _foretold(batch: Columns, name: str) -> Tensor:
    said, where = batch.head(name), VALUE_POSITIONS[name.removeprefix("slow_")]
    if where == "every":
        return said
    turn, owner = batch["turn"], batch["trajectory"]
    found = torch.full((len(owner),), torch.nan, dtype=torch.float64)
    asked = batch.asked_at(where)
    found[turn[asked]] = said[asked]
    behind = batch[f"last_{name}"]
    for m in reversed(range(len(found))):  # a turn without action tokens is worth what comes behind it
        if found[m].isnan():
            found[m] = found[m + 1] if m + 1 < len(found) and owner[m + 1] == owner[m] else behind[owner[m]]
    return found


def _behind(batch: Columns, name: str) -> Tensor:
    return batch.last_head(name)


def _of_head(head: str, where: str) -> Iterable[Column]:
    """A head, its slow copy, and what each says last."""
    place = "every action token" if where == "every" else f"each turn's {where} token"
    asked = partial(Column, level="token" if where == "every" else "turn", reads_models=True, requires=_critic)
    behind = partial(
        Column,
        level="trajectory",
        about="What a head says behind the last turn where a limit cut the episode short; 0 where it was over.",
        reads_models=True,
        provided_by="`critic`, asked behind a turn that a limit cut off",
        requires=_critic,
        listed_as="last_…",
    )
    yield asked(
        head,
        build=partial(_foretold, name=head),
        about=f"What the critic's head `{head}` foretells.",
        provided_by=f"`critic`, asked in front of {place}",
    )
    yield asked(
        f"slow_{head}",
        build=partial(_foretold, name=f"slow_{head}"),
        about="What the slow copy of a head foretells, asked where that is.",
        provided_by="slow copies of critics",
        listed_as="slow_…",
    )
    for name in (head, f"slow_{head}"):
        yield behind(f"last_{name}", build=partial(_behind, name=name))


VALUE_COLUMNS = tuple(column for head, where in VALUE_POSITIONS.items() for column in _of_head(head, where))
"""Every column a critic can give."""
