"""What does a recipe say of the machines it runs on? Where Ray is, and how many of what it places there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BeforeValidator, Field

from whetstone.recipe.parts import Settings


class ScaleSettings(Settings):
    """Where sampling and learning run: all in this process, or in parts that Ray places and restarts."""

    backend: Literal["none", "local-ray", "ray"] = "none"
    """`none`: all in this process. `local-ray`: a Ray of its own is started on this machine and ends with the run.
    `ray`: a cluster that is there already (`address`). A backend alone may stand for all: `scale: local-ray`."""
    address: str = "auto"
    """Where the cluster of `backend: ray` is: `auto`, the one this machine belongs to; or `host:port`."""
    environment_workers: int = Field(2, ge=1)
    """Processes in which episodes are played, each many at once, with environments and tools of its own; they share
    `rollout.max_in_flight`."""
    max_environment_workers: int | None = Field(None, ge=1)
    """Maximum number of environment workers. Workers beyond `environment_workers` join the run when the cluster has
    free resources, and leave it with their nodes. null: no worker joins later."""
    reward_workers: int = Field(0, ge=0)
    """Processes that judge finished episodes; 0: those that played them do."""
    engine_replicas: int = Field(1, ge=1)
    """Engines that sample, each with all weights; an episode stays with one as long as it lives."""
    max_engine_replicas: int | None = Field(None, ge=1)
    """Maximum number of engine replicas, analogous to `max_environment_workers`. A replica that joins receives the
    current weights. null: no replica joins later."""
    routing: Literal["prefix", "load"] = "prefix"
    """Which replica draws. `prefix`: an episode stays where its keys are, and a new one goes where it has least to wait
    for, siblings to the replica that has their beginning unless its queue is longer than that is worth. `load`: every
    request goes where the least is asked, and prompts are computed wherever that is."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs one replica is spread over, where its engine can (`vllm`, `sglang`)."""
    engine_addresses: list[str] = []
    """Addresses of servers that run already, one for each replica, instead of `engine.address`."""
    learner_processes: int = Field(1, ge=1)
    """Processes that learn together, each with a share of the weights and of every batch."""
    learner_tensor_parallel: int = Field(1, ge=1)
    """How many of `learner_processes` compute each layer together, each with some of its heads and of its MLP's units
    (tensor parallelism); it divides them. Batches are dealt out to groups of so many."""
    colocated: bool = False
    """Whether replicas are on the learner's GPUs and take turns with it."""
    worker_cpus: float = Field(1.0, gt=0)
    """Of a worker, of environments or of rewards, as Ray counts them."""
    replica_cpus: float = Field(1.0, gt=0)
    """Of an engine replica, as Ray counts them."""
    replica_gpus: float = Field(0.0, ge=0)
    """Of an engine replica, for each of `tensor_parallel`; 0: it computes on CPUs."""
    object_store_mib: int | None = Field(None, ge=76)
    """Shared memory `local-ray` holds weights and trajectories in, in MiB; null: what the weights take, with room."""
    mirror_url: str | None = None
    """Directory to which the run is copied, so that another machine can resume it; an fsspec URL (`s3://bucket/run`,
    `file:///shared/run`). `--resume` in an empty run directory downloads the run from it. null: no copy."""
    mirror_interval_seconds: float = Field(30.0, gt=0)
    """Time between two uploads of new files to `mirror_url`."""
    start_timeout_seconds: float = Field(300.0, gt=0)
    """Timeout for starting or restarting a worker or an engine replica."""

    @property
    def late_workers(self) -> int:
        """That may join later."""
        return max(0, (self.max_environment_workers or 0) - self.environment_workers)

    @property
    def late_replicas(self) -> int:
        """That may join later."""
        return max(0, (self.max_engine_replicas or 0) - self.engine_replicas)

    @property
    def on_ray(self) -> bool:
        """Whether anything is placed by Ray."""
        return self.backend != "none"


def backend_alone() -> BeforeValidator:
    """A backend alone is enough; beside other keys on the command line it comes as the name of a part."""

    def read(given: Any) -> Any:
        if isinstance(given, str):
            return {"backend": given}
        if isinstance(given, Mapping) and "name" in given:
            return {"backend": given["name"], **{key: value for key, value in given.items() if key != "name"}}
        return given

    return BeforeValidator(read)


KEYS_OF_RAY = (
    "environment_workers", "max_environment_workers", "reward_workers", "engine_replicas", "max_engine_replicas",
    "routing", "tensor_parallel", "engine_addresses", "colocated", "worker_cpus", "replica_cpus", "replica_gpus",
    "start_timeout_seconds",
)  # fmt: skip
"""What nothing reads where all is in one process."""
