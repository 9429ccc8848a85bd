"""Settings of the processes and machines of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BeforeValidator, Field

from whetstone.recipe.settings_base import Settings


class ScaleSettings(Settings):
    """Processes and machines for sampling and training: this process, or Ray."""

    backend: Literal["none", "local-ray", "ray"] = "none"
    """`none`: this process. `local-ray`: Ray is started on this machine and ends with the run. `ray`: an existing
    cluster (`address`). Short form: `scale: local-ray`."""
    address: str = "auto"
    """Address of the cluster of `backend: ray`: `auto`, the one of this machine; or `host:port`."""
    environment_workers: int = Field(2, ge=1)
    """Number of processes that run episodes, each with many concurrent episodes and separate environments and tools;
    they share `rollout.max_in_flight`."""
    max_environment_workers: int | None = Field(None, ge=1)
    """Maximum number of environment workers. Workers beyond `environment_workers` join the run when the cluster has
    free resources, and leave it with their nodes. null: no worker joins later."""
    reward_workers: int = Field(0, ge=0)
    """Number of processes that score finished episodes; 0: the environment workers score them."""
    engine_replicas: int = Field(1, ge=1)
    """Number of engines, each with all weights; an episode stays with one replica."""
    max_engine_replicas: int | None = Field(None, ge=1)
    """Maximum number of engine replicas, analogous to `max_environment_workers`. A replica that joins receives the
    current weights. null: no replica joins later."""
    routing: Literal["prefix", "load"] = "prefix"
    """Selection of the replica of a request. `prefix`: an episode stays with its KV cache; a new one goes to the
    replica with the lowest cost, so episodes of a group share the replica with their cached prefix unless its queue
    costs more. `load`: every request goes to the replica with the fewest requests."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs per replica, if its engine supports it (`vllm`, `sglang`)."""
    engine_addresses: list[str] = []
    """Addresses of running servers, one per replica, instead of `engine.address`."""
    learner_processes: int = Field(1, ge=1)
    """Number of learner processes; weights and batches are sharded over them."""
    learner_tensor_parallel: int = Field(1, ge=1)
    """Number of consecutive `learner_processes` that compute each layer together (tensor parallelism); must divide
    them. Batches are divided among the groups."""
    colocated: bool = False
    """Whether replicas use the GPUs of the learner and alternate with it."""
    worker_cpus: float = Field(1.0, gt=0)
    """Number of CPUs that Ray reserves for an environment or reward worker."""
    replica_cpus: float = Field(1.0, gt=0)
    """Number of CPUs that Ray reserves for an engine replica."""
    replica_gpus: float = Field(0.0, ge=0)
    """Number of GPUs that Ray reserves for an engine replica, for each of `tensor_parallel`; 0: it runs on CPUs."""
    object_store_mib: int | None = Field(None, ge=76)
    """Shared memory of `local-ray` for weights and trajectories, in MiB; null: the size of the weights, with a
    margin."""
    mirror_url: str | None = None
    """Directory to which the run is copied, so that another machine can resume it; an fsspec URL (`s3://bucket/run`,
    `file:///shared/run`). `--resume` in an empty run directory downloads the run from it. null: no copy."""
    mirror_interval_seconds: float = Field(30.0, gt=0)
    """Time between two uploads of new files to `mirror_url`."""
    start_timeout_seconds: float = Field(300.0, gt=0)
    """Timeout for starting or restarting a worker or an engine replica."""

    @property
    def late_workers(self) -> int:
        """Number of environment workers that can join later."""
        return max(0, (self.max_environment_workers or 0) - self.environment_workers)

    @property
    def late_replicas(self) -> int:
        """Number of engine replicas that can join later."""
        return max(0, (self.max_engine_replicas or 0) - self.engine_replicas)

    @property
    def on_ray(self) -> bool:
        """Whether Ray places any component of the run."""
        return self.backend != "none"


def coerce_backend() -> BeforeValidator:
    """Return a validator that accepts the name of a backend instead of a mapping.

    It also accepts the key `name`, which the command line creates next to other keys.
    """

    def read(value: Any) -> Any:
        if isinstance(value, str):
            return {"backend": value}
        if isinstance(value, Mapping) and "name" in value:
            return {"backend": value["name"], **{key: value for key, value in value.items() if key != "name"}}
        return value

    return BeforeValidator(read)


KEYS_OF_RAY = (
    "environment_workers", "max_environment_workers", "reward_workers", "engine_replicas", "max_engine_replicas",
    "routing", "tensor_parallel", "engine_addresses", "colocated", "worker_cpus", "replica_cpus", "replica_gpus",
    "start_timeout_seconds",
)  # fmt: skip
"""Keys that have no effect if everything runs in one process."""
