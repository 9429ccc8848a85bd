"""Which columns are ours? Every function of these files that is declared one; nothing else has to list it.

Easy to get wrong: what needs a model cannot be read from a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from whetstone.learning.columns import behaviour, models, rewards, structure, values
from whetstone.learning.columns.declaration import Column, by_name
from whetstone.learning.columns.values import VALUE_COLUMNS

COLUMN_BUILDERS: Mapping[str, Column] = {column.name: column for column in VALUE_COLUMNS} | {
    name: column
    for file in (rewards, structure, behaviour, models, values)
    for name, column in by_name(vars(file).values()).items()
}
"""Built-in columns, by name."""
MODEL_COLUMNS = frozenset(name for name, column in COLUMN_BUILDERS.items() if column.reads_models)
"""Those of them that cost a forward pass."""


def empty_column(name: str) -> Tensor:
    """[0] a column of nothing."""
    known = COLUMN_BUILDERS.get(name)
    return torch.empty(0, dtype=torch.long if known is not None and known.index else torch.float64)


def from_record(columns: Iterable[str], added: Mapping[str, Column] | None = None) -> bool:
    """Whether columns can be read from trajectories alone, without a model.

    Args:
        added: Columns of a recipe, by name.
    """
    known = {**COLUMN_BUILDERS, **(added or {})}
    return not any(name in known and known[name].reads_models for name in columns)
