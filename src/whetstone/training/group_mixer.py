"""Mix groups of several sources into the updates of a training loop.

    sampled groups + source A (fraction a) + source B (fraction b) → one update

The groups of the next update are requested from each source while the learner computes. An update waits for a source at
most `timeout_seconds`; late groups join a later update. The record of a run stores which groups of each source an
update used, so that a resumed run repeats the update with the same groups.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from whetstone.capabilities import implements_protocol
from whetstone.data.offline_episodes import mark_offline
from whetstone.errors import DataError, WhetstoneError
from whetstone.rollout.group_sources import MixedSource, PlaysEpisodes
from whetstone.tools.protocol import HasClose, find_provenance
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Group, Provenance
from whetstone.user_code import describe_exception

Spans = Mapping[str, Sequence[int]]
"""By source, (position of the first group, number of groups) that an update uses."""


@dataclass(frozen=True, slots=True)
class MixedGroups:
    """Groups of other sources in an update, from `GroupMixer.take`."""

    groups: Mapping[str, Sequence[Group]] = field(default_factory=dict)
    """Groups by name of the source."""
    spans: Spans = field(default_factory=dict)
    """Positions of these groups in their sources, for the record of the run."""
    late: tuple[str, ...] = ()
    """Names of the sources that did not respond within their time limit."""


@dataclass(frozen=True, slots=True)
class _Request:
    first: int
    count: int
    groups: asyncio.Task[Sequence[Group]]


def total_groups(sources: Mapping[str, MixedSource], sampled: int) -> float:
    """Return the total number of groups per update, sampled ones and those of other sources.

    Args:
        sources: Sources by name, with their fractions of the total.
        sampled: Number of sampled groups per update.
    """
    return sampled / (1 - sum(mixed.fraction for mixed in sources.values()))


class GroupMixer:
    """Takes groups from the additional sources of a recipe, in proportion to their fractions.

    Created by `UpdateGroups`, and by `OfflineTraining` with one source.

    Args:
        sources: Sources by name.
        groups: Total number of groups per update; see `total_groups`.
        waits: Whether an update waits for a late source without a time limit. Sources that play episodes are always
            waited for.
        report: Receives one line about a source that is late for the first time.
    """

    def __init__(
        self,
        sources: Mapping[str, MixedSource],
        *,
        groups: float,
        waits: bool = True,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.sources, self.waits, self.report = sources, waits, report
        self._per_update = {name: groups * mixed.fraction for name, mixed in sources.items()}
        self._requests: dict[str, _Request] = {}
        self._reported: set[str] = set()

    def count_before(self, name: str, update: int) -> int:
        """Return the number of groups of a source that all updates before `update` use together.

        Args:
            name: Name of the source.
            update: Number of the update, from 0.
        """
        mixture = self.sources[name].mixture
        if mixture is not None and mixture.mode == "alternating":
            return update * round(self._per_update[name] * mixture.inner_updates)
        return math.floor(update * self._per_update[name] + 1e-9)  # the product is rarely exact in binary

    async def take(self, update: int, record: Mapping[int, Spans]) -> MixedGroups:
        """Return the groups of an update from all sources.

        Args:
            update: Number of the update, from 0.
            record: Spans of earlier updates. A recorded update gets the same groups again.

        Raises:
            DataError: If a source failed, or returned another number of groups than requested.
        """
        if update in record:
            spans = {name: (span[0], span[1]) for name, span in record[update].items() if name in self.sources}
            stored = {name: await self._read(name, *span) for name, span in spans.items()}
            return MixedGroups({name: self._prepared(name, update, each) for name, each in stored.items()}, spans)
        groups: dict[str, Sequence[Group]] = {}
        taken: dict[str, Sequence[int]] = {}
        late: list[str] = []
        self.request(update, record)
        began = time.perf_counter()
        for name, request in list(self._requests.items()):
            mixed = self.sources[name]
            limit = None if self.waits or implements_protocol(mixed.source, PlaysEpisodes) else mixed.timeout_seconds
            left = None if limit is None else max(0.0, limit - (time.perf_counter() - began))
            await asyncio.wait([request.groups], timeout=left)
            if limit is not None and not request.groups.done():
                late.append(name)
                self._report(name, update, limit)
                groups[name], taken[name] = (), (request.first, 0)
                continue
            del self._requests[name]
            groups[name] = self._prepared(name, update, request.groups.result())
            taken[name] = (request.first, request.count)
        return MixedGroups(groups, taken, tuple(late))

    def request(self, update: int, record: Mapping[int, Spans], *, is_ahead: bool = False) -> None:
        """Start to read the groups of an update, so that they are available when `take` is called.

        Args:
            update: Number of the update, from 0.
            record: Spans of earlier updates.
            is_ahead: Whether the weights of the update do not exist yet; groups that the policy plays are then not
                requested.
        """
        for name, mixed in self.sources.items():
            if is_ahead and implements_protocol(mixed.source, PlaysEpisodes):
                continue
            first, request = self._position(name, update, record), self._requests.get(name)
            if request is not None and request.first == first:
                continue
            if request is not None:
                request.groups.cancel()
            count = max(0, self.count_before(name, update + 1) - first)
            self._requests[name] = _Request(first, count, asyncio.create_task(self._read(name, first, count)))

    async def close(self) -> None:
        """Cancel all requests and close the sources."""
        tasks = [request.groups for request in self._requests.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for mixed in self.sources.values():
            if implements_protocol(mixed.source, HasClose):
                await call_user_function(mixed.source.close)

    def _position(self, name: str, update: int, record: Mapping[int, Spans]) -> int:
        before = record.get(update - 1, {}).get(name)
        return self.count_before(name, update) if before is None else before[0] + before[1]

    async def _read(self, name: str, first: int, count: int) -> Sequence[Group]:
        if count == 0:
            return ()
        try:
            groups: Sequence[Group] = await call_user_function(self.sources[name].source.groups, first, count)
        except WhetstoneError:
            raise
        except Exception as error:
            raise DataError(f"source {name} failed: {describe_exception(error)}") from error
        if len(groups) != count:
            raise DataError(
                f"source {name} returned {len(groups)} groups instead of {count}; "
                "a source must return the requested number"
            )
        return groups

    def _prepared(self, name: str, update: int, groups: Sequence[Group]) -> tuple[Group, ...]:
        """Return groups with ids of the update and the provenance of their source."""
        mixed = self.sources[name]
        provenance = find_provenance(mixed.source)
        prepared = []
        for number, group in enumerate(groups):
            prefix = f"{name}-{update}-{number}/"
            if provenance is not Provenance.IMAGINED:
                group, prefix = mark_offline(group, prefix, number=number, off_policy=mixed.off_policy), ""
            trajectories = tuple(
                replace(
                    each,
                    id=f"{prefix}{each.id}",
                    parent=None if each.parent is None else f"{prefix}{each.parent}",
                    provenance=each.provenance if provenance is Provenance.SAMPLED else provenance,
                )
                for each in group.trajectories
            )
            prepared.append(replace(group, trajectories=trajectories, number=number))
        return tuple(prepared)

    def _report(self, name: str, update: int, limit: float) -> None:
        if name not in self._reported:
            self._reported.add(name)
            self.report(
                f"update {update + 1}: source {name} has no groups within {limit:g} s; they join a later update "
                f"(sources/{name}/late)"
            )
