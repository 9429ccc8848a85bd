"""Start of a local Ray instance, or connection to a cluster, with a check of the requested resources.

A local instance communicates only over the loopback address, with a token that only its processes have. Its files are
in a temporary folder that is deleted at the end.

Note:
    Ray waits forever for resources that no machine has. They are counted before anything is placed.
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
"""Maximum length of the path of the socket folder: the system allows 107 characters for the whole path of a socket."""
_LOCAL_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # default on other systems: nodes of one machine use the loopback address
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # an actor without a dedicated GPU sees those of the driver
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # errors of processes that restart would appear between a run's own lines
    "RAY_worker_niceness": "0",  # the run waits for them; at 15, Ray's default, they starve next to other work
}


@dataclass(frozen=True, slots=True)
class Demand:
    """Resources that a run requests from a cluster."""

    cpus: float
    """Number of CPUs of all workers and replicas."""
    gpus: float
    """Number of GPUs of all replicas."""
    model_bytes: int
    """Size of all weights of the policy, in bytes."""
    trained_bytes: int
    """Size of the weights that are sent to replicas, in bytes."""
    replicas: int
    """Number of engine replicas."""

    @property
    def store_bytes(self) -> int:
        """Required shared memory in bytes: the policy, two versions of the trained weights, and groups in transfer."""
        return self.model_bytes + 2 * self.trained_bytes + _LEAST_STORE


@dataclass(slots=True)
class RunningRay:
    """Ray instance that a run uses."""

    is_owned: bool
    """Whether the run started or joined the instance itself, so that it disconnects at its end."""
    folder: Path | None = None
    """Temporary folder of a local instance; None for an existing cluster."""

    def close(self) -> None:
        """Disconnect from Ray, which ends a local instance, and delete its temporary folder."""
        if self.is_owned:
            import ray

            ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def set_ray_environment(scale: ScaleSettings) -> Iterator[None]:
    """Set the environment variables of a local Ray instance while the block runs.

    Ray reads some of them at its import. Variables that are already set are unchanged. `PYTHONPATH` lets Ray's
    processes find the modules that a recipe names.
    """
    if scale.backend != "local-ray":
        yield
        return
    variables = {**_LOCAL_VARIABLES, "RAY_AUTH_TOKEN": _token()}
    new = {name: value for name, value in variables.items() if name not in os.environ}
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
    """Return the authentication token of Ray: one per process, because Ray keeps the first token also for later
    clusters.
    """
    return secrets.token_hex(32)


def start_ray(resolved: Resolved, demand: Demand) -> RunningRay:
    """Start or join a Ray instance and check that it has the requested resources.

    Args:
        resolved: Recipe of the run.
        demand: Requested resources.

    Raises:
        RecipeError: The instance has fewer resources than requested; the message has the numbers.
        EngineError: Ray does not start, or is unreachable.
    """
    import ray

    scale = resolved.recipe.scale
    if scale.backend == "local-ray":
        _check_store(resolved, demand, scale.object_store_mib)
    running = RunningRay(is_owned=not ray.is_initialized())
    try:
        if running.is_owned:
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
            detail = " ".join(str(error).split())[:300]
            raise EngineError(f"scale.address: cannot connect to Ray at {scale.address}: {detail}") from None
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
            f"versions of the trained weights ({_mib(2 * demand.trained_bytes)}) and {_mib(_LEAST_STORE)} for episodes",
        )


def _check_room(resolved: Resolved, demand: Demand) -> None:
    """Check that the cluster has the requested resources.

    Raises:
        RecipeError: The cluster has fewer resources.
    """
    import ray

    scale = resolved.recipe.scale
    resources: Mapping[str, float] = ray.cluster_resources()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if demand.gpus > resources.get("GPU", 0):
        detail = (
            f"{scale.engine_replicas} replicas × {scale.tensor_parallel} × {scale.replica_gpus:g} GPUs are "
            f"{demand.gpus:g}, and the cluster has {resources.get('GPU', 0):g} ({len(nodes)} nodes)"
        )
        raise resolved.error("scale.replica_gpus", detail)
    if demand.cpus > resources.get("CPU", 0):
        detail = (
            f"{scale.environment_workers} environment and {scale.reward_workers} reward workers × "
            f"{scale.worker_cpus:g} CPUs and {scale.engine_replicas} replicas × {scale.replica_cpus:g} are "
            f"{demand.cpus:g}, and the cluster has {resources.get('CPU', 0):g} ({len(nodes)} nodes)"
        )
        raise resolved.error("scale.environment_workers", detail)
    memory = resources.get("memory", 0)
    if scale.replica_gpus == 0 and memory and demand.replicas * demand.model_bytes > memory:
        detail = (
            f"{demand.replicas} × {_mib(demand.model_bytes)} of weights do not fit into {_mib(int(memory))} of memory"
        )
        raise resolved.error("scale.engine_replicas", detail)
    stores = [node["Resources"].get("object_store_memory", 0) for node in nodes]
    if stores and min(stores) < demand.store_bytes:
        detail = (
            f"a node's object store has {_mib(int(min(stores)))}, and weights and episodes take "
            f"{_mib(demand.store_bytes)} (ray start --object-store-memory)"
        )
        raise resolved.error("scale", detail)


def _mib(count: int) -> str:
    return f"{count / _MIB:,.0f} MiB"
