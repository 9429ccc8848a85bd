"""Options of containers: runtime, image, network and processors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from whetstone.errors import SandboxError
from whetstone.plugins import OptionError, validate_options
from whetstone.sandbox.containers.egress_proxy import parse_host
from whetstone.sandbox.containers.loopback_ports import can_listen_in_containers
from whetstone.sandbox.limits import Limits

CONTAINER_LIMITS = Limits(
    wall_seconds=60, cpu_seconds=60, memory_mb=2048, processes=256, open_files=1024, file_mb=1024, folder_mb=4096,
    files=200_000,
)  # fmt: skip
"""Limits of a container unless `limits` sets others: those of a small machine instead of those of an interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """Container of an episode: `sandbox: {container: podman, image: NAME}`.

    One of `image`, `build` and `rootfs` is required.
    """

    container: Literal["podman", "docker"]
    """Container runtime; its command must be installed."""
    image: str = ""
    """Name of a local image. Images are never pulled."""
    build: str = ""
    """Folder with a `Containerfile` or `Dockerfile`. The image is built once for each content of the folder."""
    rootfs: str = ""
    """Folder or tar archive with a root file system, imported as an image once for each path and modification time."""
    network: Literal["none", "open"] | tuple[str, ...] = "none"
    """Network of the container: only its own loopback (`none`); that of the runtime (`open`); or a list of hosts
    (`host` or `host:port`) that programs reach through an HTTP proxy, and nothing else."""
    build_network: Literal["none", "open"] = "none"
    """Network of `RUN` instructions while the image is built."""
    cpus: float = 1.0
    """Maximum number of processors that the container uses."""
    warm_containers: int = 0
    """Maximum number of containers that are started in advance for later episodes. Each serves one episode."""

    def __post_init__(self) -> None:
        sources = [name for name in ("image", "build", "rootfs") if getattr(self, name)]
        if len(sources) != 1:
            keys = " and ".join(sources) or "none of them"
            raise SandboxError(f"sandbox.container: set one of image, build and rootfs; got {keys}")
        if not self.cpus > 0:
            raise SandboxError(f"sandbox.cpus: must be above 0, got {self.cpus:g}")
        for host in self.allowed_hosts:
            try:
                parse_host(host)
            except ValueError as error:
                raise SandboxError(f"sandbox.network: {error}") from None
        if self.allowed_hosts and not can_listen_in_containers():
            raise SandboxError("sandbox.network: a list of hosts requires nsenter; apt-get install util-linux")
        if self.warm_containers < 0:
            raise SandboxError(f"sandbox.warm_containers: must be 0 or more, got {self.warm_containers}")

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """Return the listed hosts; empty if `network` is no list."""
        return () if isinstance(self.network, str) else self.network


def parse_container_options(values: Mapping[str, Any]) -> ContainerOptions:
    """Return the options in a recipe's `sandbox: {container: …}`.

    Raises:
        OptionError: A key does not exist or has a value of another type.
    """
    try:
        return ContainerOptions(**validate_options(ContainerOptions, dict(values)))
    except OptionError as error:
        raise OptionError(f"sandbox.{error.key}", error.message) from None
