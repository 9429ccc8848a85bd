"""Forgetting and transfer over a sequence of training stages, from the success on evaluation suites.

R[i, j] is the success on suite j after stage i of T; R[0, j] is the success before training, and stage k(j) trains on
the tasks of suite j.

    forward transfer    R[k − 1, j] − R[0, j]      effect of earlier stages on tasks that they did not train on
    backward transfer   R[T, j] − R[k, j]          effect of later stages on tasks that were trained before
    forgetting          max_{i < T} R[i, j] − R[T, j]

Source: Lopez-Paz & Ranzato 2017 (GEM), arXiv:1706.08840, eq. 1 to 3: means over suites are ACC, BWT and FWT;
    Chaudhry et al. 2018, arXiv:1801.10112, §3: forgetting. The maximum includes the success before training, since a
    pretrained model has abilities that no stage trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True, slots=True)
class SuiteTransfer:
    """Success on one suite over the stages of a run, and its changes, as fractions from -1 to 1."""

    success: Mapping[str, float]
    """Success by evaluation, in order: `untrained`, then the name of each stage."""
    stage: str | None
    """Stage that trains on the tasks of the suite; None: no stage does."""
    forward_transfer: float | None
    """Effect of the stages before `stage`, or of all stages if `stage` is None; None if it is the first."""
    backward_transfer: float | None
    """Effect of the stages after `stage`; None if it is the last, or no stage trains on the suite."""
    forgetting: float | None
    """Best earlier success minus the last one; negative if the last one is the best. None if `stage` is the last."""


def compute_transfer(success: Mapping[str, float], stage: str | None) -> SuiteTransfer:
    """Compute forgetting and transfer on one suite; see the module for the formulas.

    Args:
        success: Success by evaluation, `untrained` first, with at least one stage.
        stage: Stage that trains on the tasks of the suite; None: no stage does.

    Raises:
        ValueError: If there are fewer than two evaluations, or `stage` is not one of them.
    """
    names, rates = list(success), list(success.values())
    if len(rates) < 2:
        raise ValueError("transfer requires an evaluation before training and one after a stage")
    forgetting = max(rates[:-1]) - rates[-1]
    if stage is None:
        return SuiteTransfer(success, None, rates[-1] - rates[0], None, forgetting)
    place = names.index(stage)
    forward = rates[place - 1] - rates[0] if place > 1 else None
    backward = rates[-1] - rates[place] if place < len(rates) - 1 else None
    return SuiteTransfer(success, stage, forward, backward, None if backward is None else forgetting)


def summarize_transfer(suites: Mapping[str, SuiteTransfer]) -> dict[str, Any]:
    """Return all suites and their means as JSON values: `mean_success` (ACC), `backward_transfer` (BWT), … by name.

    A mean over no suite is None.
    """
    listed = list(suites.values())
    columns: dict[str, list[float | None]] = {
        "mean_success": [list(each.success.values())[-1] for each in listed],
        "forward_transfer": [each.forward_transfer for each in listed],
        "backward_transfer": [each.backward_transfer for each in listed],
        "forgetting": [each.forgetting for each in listed],
    }
    defined = {name: [value for value in values if value is not None] for name, values in columns.items()}
    means = {name: fmean(values) if values else None for name, values in defined.items()}
    return {"suites": {name: asdict(each) for name, each in suites.items()}, **means}


def format_transfer(summary: Mapping[str, Any]) -> list[str]:
    """Format the result of `summarize_transfer` as the lines of a table, with differences in points."""
    suites: Mapping[str, Mapping[str, Any]] = summary["suites"]
    changes = ("forward_transfer", "backward_transfer", "forgetting")
    head = ["suite", *next(iter(suites.values()))["success"], *(name.replace("_", " ") for name in changes)]
    rows: list[Sequence[str]] = [head]
    for name, each in suites.items():
        rates = [f"{100 * rate:.1f} %" for rate in each["success"].values()]
        rows.append([name, *rates, *(_format_points(each[change]) for change in changes)])
    blanks = [""] * (len(head) - 5)
    last = "–" if summary["mean_success"] is None else f"{100 * summary['mean_success']:.1f} %"
    rows.append(["mean", *blanks, last, *(_format_points(summary[change]) for change in changes)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows]  # fmt: skip


def _format_points(value: float | None) -> str:
    return "–" if value is None else f"{100 * value + 0.0:+.1f}"
