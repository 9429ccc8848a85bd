"""Where is Ray? One of its own is started on this machine, or a cluster is joined; and does what is asked for fit?

Everything a Ray of our own says and hears stays on the loopback address, behind a token that only its processes know,
and its files lie in a folder that goes with it.

Easy to get wrong: Ray waits for ever for resources that no machine has. So they are counted before anything is placed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.errors import EngineError
from whetstone.recipe import Resolved, ScaleSettings

_MIB = 2**20
_LEAST_STORE = 96 * _MIB
_LONGEST_PATH = 32
"""Of the folder its sockets lie under: the system allows a socket's whole path 107 characters."""
_OF_ITS_OWN = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # what this flag says on other systems: nodes of one machine find each other by the loopback address
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # an actor without a GPU of its own sees what the driver sees
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # errors of deaths that are mended would stand between a run's own lines
    "RAY_worker_niceness": "0",  # the run waits for them; at 15, as Ray has it, they starve beside other work
}


@dataclass(frozen=True, slots=True)
class Demand:
    """What a run asks of a cluster."""

    cpus: float
    gpus: float
    model_bytes: int
    """Of all weights."""
    trained_bytes: int
    """Of those that are published."""
    replicas: int

    @property
    def store_bytes(self) -> int:
        """Shared memory: the policy as it is sent, two versions of what is trained, and groups on their way."""
        return self.model_bytes + 2 * self.trained_bytes + _LEAST_STORE


@dataclass(slots=True)
class RunningRay:
    """A Ray that a run uses."""

    ours: bool
    """Whether it ends with the run."""
    folder: Path | None = None

    def close(self) -> None:
        """End it, where it is ours."""
        if self.ours:
            import ray

            ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def environment_of(scale: ScaleSettings) -> Iterator[None]:
    """Variables that a Ray of our own and what it starts read, for as long as the block lasts. Ray reads some where it
    is imported.

    Those that are set already stay. Modules that a recipe names are found there where they are found here.
    """
    if scale.backend != "local-ray":
        yield
        return
    given = {**_OF_ITS_OWN, "RAY_AUTH_TOKEN": _token()}
    new = {name: value for name, value in given.items() if name not in os.environ}
    new["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@functools.cache
def _token() -> str:
    """Ray keeps the first it is given for as long as the process lasts, also for a cluster that is begun later."""
    return secrets.token_hex(32)


def start_ray(resolved: Resolved, demand: Demand) -> RunningRay:
    """A Ray with room for what is asked.

    Raises:
        RecipeError: It has less than is asked for; the message has the numbers.
        EngineError: It does not start, or cannot be reached.
    """
    import ray

    scale = resolved.recipe.scale
    if scale.backend == "local-ray":
        _check_store(resolved, demand, scale.object_store_mib)
    running = RunningRay(ours=not ray.is_initialized())
    try:
        if running.ours:
            running.folder = _begun(scale, demand)
        _check_room(resolved, demand)
    except BaseException:
        running.close()
        raise
    return running


def _begun(scale: ScaleSettings, demand: Demand) -> Path | None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if scale.backend == "ray":
        try:
            ray.init(address=scale.address, **quiet)
        except Exception as error:  # of many kinds
            said = " ".join(str(error).split())[:300]
            raise EngineError(f"scale.address: no Ray can be joined at {scale.address}: {said}") from None
        return None
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    if len(str(folder)) > _LONGEST_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    store = demand.store_bytes if scale.object_store_mib is None else scale.object_store_mib * _MIB
    try:
        ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, int(demand.cpus + 0.999)),  # they share what cores there are
            include_dashboard=False,
            object_store_memory=store,
            _temp_dir=str(folder),
            **quiet,
        )
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise EngineError(f"scale: Ray does not start: {' '.join(str(error).split())[:300]}") from None
    return folder


def _check_store(resolved: Resolved, demand: Demand, mib: int | None) -> None:
    if mib is not None and mib * _MIB < demand.store_bytes:
        raise resolved.error(
            "scale.object_store_mib",
            f"{mib} MiB are less than {_mib(demand.store_bytes)}: the policy ({_mib(demand.model_bytes)}), two "
            f"versions of what is trained ({_mib(2 * demand.trained_bytes)}) and {_mib(_LEAST_STORE)} for episodes",
        )


def _check_room(resolved: Resolved, demand: Demand) -> None:
    """See that the cluster has what is asked for.

    Raises:
        RecipeError: It has not.
    """
    import ray

    scale = resolved.recipe.scale
    there: Mapping[str, float] = ray.cluster_resources()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if demand.gpus > there.get("GPU", 0):
        said = (
            f"{scale.engine_replicas} replicas × {scale.tensor_parallel} × {scale.replica_gpus:g} GPUs are "
            f"{demand.gpus:g}, and the cluster has {there.get('GPU', 0):g} ({len(nodes)} nodes)"
        )
        raise resolved.error("scale.replica_gpus", said)
    if demand.cpus > there.get("CPU", 0):
        said = (
            f"{scale.environment_workers} environment and {scale.reward_workers} reward workers × "
            f"{scale.worker_cpus:g} CPUs and {scale.engine_replicas} replicas × {scale.replica_cpus:g} are "
            f"{demand.cpus:g}, and the cluster has {there.get('CPU', 0):g} ({len(nodes)} nodes)"
        )
        raise resolved.error("scale.environment_workers", said)
    memory = there.get("memory", 0)
    if scale.replica_gpus == 0 and memory and demand.replicas * demand.model_bytes > memory:
        said = (
            f"{demand.replicas} × {_mib(demand.model_bytes)} of weights do not fit into {_mib(int(memory))} of memory"
        )
        raise resolved.error("scale.engine_replicas", said)
    stores = [node["Resources"].get("object_store_memory", 0) for node in nodes]
    if stores and min(stores) < demand.store_bytes:
        said = (
            f"a node's object store has {_mib(int(min(stores)))}, and weights and episodes take "
            f"{_mib(demand.store_bytes)} (ray start --object-store-memory)"
        )
        raise resolved.error("scale", said)


def _mib(count: int) -> str:
    return f"{count / _MIB:,.0f} MiB"
