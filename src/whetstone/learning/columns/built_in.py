"""Built-in columns: every function of these modules that is declared as a column.

Note:
    Columns that need a model cannot be read from a run record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from whetstone.learning.columns import behaviour, logprob_columns, reward_columns, structure, values
from whetstone.learning.columns.declaration import Column, collect_columns
from whetstone.learning.columns.reward_columns import REWARD_COLUMNS
from whetstone.learning.columns.values import VALUE_COLUMNS

COLUMN_BUILDERS: Mapping[str, Column] = {column.name: column for column in (*VALUE_COLUMNS, *REWARD_COLUMNS)} | {
    name: column
    for file in (reward_columns, structure, behaviour, logprob_columns, values)
    for name, column in collect_columns(vars(file).values()).items()
}
"""Declarations of the built-in columns, by name."""
MODEL_COLUMNS = frozenset(name for name, column in COLUMN_BUILDERS.items() if column.reads_models)
"""Names of built-in columns that cost a forward pass."""


def create_empty_column(name: str) -> Tensor:
    """Return an empty column [0] with the data type of the named column."""
    known = COLUMN_BUILDERS.get(name)
    return torch.empty(0, dtype=torch.long if known is not None and known.index else torch.float64)


def is_readable_from_record(columns: Iterable[str], added: Mapping[str, Column] | None = None) -> bool:
    """Return whether columns can be computed from recorded trajectories, without a model.

    Args:
        columns: Names of the columns.
        added: Custom columns of a recipe, by name.
    """
    known = {**COLUMN_BUILDERS, **(added or {})}
    return not any(name in known and known[name].reads_models for name in columns)
