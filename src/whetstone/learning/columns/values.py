"""Critic columns: values of each head, of its slow copy, and bootstrap values after truncated episodes.

Note:
    A turn without action tokens has no token at which a critic predicts. Its value is that of the next turn, or the
    bootstrap value after the last turn.
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
"""Quantities that critics predict, and the action token of a turn before which each is computed."""


STATE_VALUES = ("values", "twin_values", "token_values")
"""Quantities that are the value of a state: the expected return from it on."""


def critic_heads(columns: Iterable[str], *, ensemble: int = 1) -> tuple[str, ...]:
    """Return the names of the critic heads that columns require: trained heads, then slow copies.

    Args:
        columns: Names of the columns that estimators and losses read.
        ensemble: Number of members per head; members after the first are named `values#2`, `values#3`, …
    """
    heads = [name.removeprefix("last_") for name in columns]
    heads = [name for name in heads if name.removeprefix("slow_") in VALUE_POSITIONS]
    trained = sorted({name.removeprefix("slow_") for name in heads})
    first = (*trained, *sorted({name for name in heads if name.startswith("slow_")}))
    return tuple(name if k == 1 else f"{name}#{k}" for name in first for k in range(1, ensemble + 1))


def get_head_kind(head: str) -> str:
    """Return the quantity that a head predicts: `values` for the ensemble member `values#2`."""
    return head.partition("#")[0]


def _several(run: RunCapabilities) -> str | None:
    critic = run.recipe.critic
    return None if critic is not None and critic.ensemble_size > 1 else "set critic.ensemble_size to 2 or more"


@column(
    "turn",
    reads_models=True,
    provided_by="`critic.ensemble_size: 5`, if `advantage` reads state values",
    requires=_several,
)
def value_deviations(batch: Columns) -> Tensor:
    """Population standard deviation of the values of a critic ensemble at the start of each turn, in units of return;
    0 for a turn without action tokens."""
    known = [head for head in batch.critics.heads if get_head_kind(head) in STATE_VALUES]
    if not known:
        raise CreditError("value_deviations: no critic predicts state values; advantage: turn_gae requires one")
    deviations = batch.critics.members(get_head_kind(known[0])).std(0, correction=0)
    per_turn = torch.zeros(batch.count("turn"), dtype=torch.float64)
    positions = batch.critics.find_positions("first")
    per_turn[batch["turn"][positions]] = deviations[positions]
    return per_turn


def _critic(run: RunCapabilities) -> str | None:
    return None if run.recipe.critic is not None else "requires a critic: set critic: {}"


def _predict(batch: Columns, name: str) -> Tensor:
    predictions, where = batch.critics.head(name), VALUE_POSITIONS[name.removeprefix("slow_")]
    if where == "every":
        return predictions
    turn, owner = batch["turn"], batch["trajectory"]
    per_turn = torch.full((len(owner),), torch.nan, dtype=torch.float64)
    positions = batch.critics.find_positions(where)
    per_turn[turn[positions]] = predictions[positions]
    bootstrap = batch[f"last_{name}"]
    for m in reversed(range(len(per_turn))):  # a turn without action tokens has the value of the next one
        if per_turn[m].isnan():
            per_turn[m] = per_turn[m + 1] if m + 1 < len(per_turn) and owner[m + 1] == owner[m] else bootstrap[owner[m]]
    return per_turn


def _bootstrap(batch: Columns, name: str) -> Tensor:
    return batch.critics.last_head(name)


def _declare_head(head: str, where: str) -> Iterable[Column]:
    """Yield the columns of a head, of its slow copy, and of the bootstrap values of both."""
    place = "every action token" if where == "every" else f"each turn's {where} token"
    declare = partial(Column, level="token" if where == "every" else "turn", reads_models=True, requires=_critic)
    declare_bootstrap = partial(
        Column,
        level="trajectory",
        about="Prediction of a head after the last turn if a limit truncated the episode, else 0 (bootstrap value).",
        reads_models=True,
        provided_by="`critic`, after a turn that a limit truncated",
        requires=_critic,
        listed_as="last_…",
    )
    yield declare(
        head,
        build=partial(_predict, name=head),
        about=f"Prediction of the critic's head `{head}`.",
        provided_by=f"`critic`, before {place}",
    )
    yield declare(
        f"slow_{head}",
        build=partial(_predict, name=f"slow_{head}"),
        about="Prediction of the slow copy of a head, at the same tokens.",
        provided_by="slow copies of critics",
        listed_as="slow_…",
    )
    for name in (head, f"slow_{head}"):
        yield declare_bootstrap(f"last_{name}", build=partial(_bootstrap, name=name))


VALUE_COLUMNS = tuple(column for head, where in VALUE_POSITIONS.items() for column in _declare_head(head, where))
"""All columns that a critic can provide."""
