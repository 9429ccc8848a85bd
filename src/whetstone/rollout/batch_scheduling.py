"""Selection of the finished groups of the next update: the oldest, unless a remaining one would exceed its staleness
bound.

A group started at version s must be in an update made at version s + max_staleness or before. A batch may leave out
groups that are still running, if for every later version u those due by u still fit into the updates until then:

    for every u ≥ v:   groups left with s + max_staleness ≤ u   ≤   (u − v) · groups_per_update

Otherwise the update waits for the one that is due. No group is dropped, and long ones are neither starved nor
preferred. With at most as many groups as admission allows (`staleness_control.py`), waiting always helps.

Note:
    If groups are taken as they finish, nothing is bounded, since a slow one waits for ever longer. If old ones are
    dropped, staleness is bounded, but long episodes are never trained.
"""

from __future__ import annotations

from collections.abc import Mapping


def next_batch(
    finished: Mapping[int, int],
    running: Mapping[int, int],
    *,
    version: int,
    groups_per_update: int,
    max_staleness: int,
) -> list[int] | None:
    """Select the groups of the update at `version`; None if the update must wait for a running group.

    The oldest finished groups are selected, unless a group that is left out could then exceed `max_staleness`.

    Args:
        finished: Finished groups: group number → version of the weights when it started.
        running: Groups that are still running: group number → version of the weights when it started.
        version: Number of updates made so far.
        groups_per_update: Number of groups per update.
        max_staleness: Maximum number of updates between the start of a group and the update that trains it.

    Returns:
        Group numbers in ascending order, or None.
    """
    if len(finished) < groups_per_update:
        return None
    oldest = sorted(finished, key=lambda number: (finished[number], number))[:groups_per_update]
    taken = set(oldest)
    left = sorted([*(began for number, began in finished.items() if number not in taken), *running.values()])
    for waiting, began in enumerate(left, start=1):
        # with this one, `waiting` groups are due by its deadline
        if waiting > (began + max_staleness - version) * groups_per_update:
            return None
    return sorted(oldest)
