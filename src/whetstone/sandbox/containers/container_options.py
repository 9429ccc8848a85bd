"""Options of containers: runtime, image, network and processors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from whetstone.errors import SandboxError
from whetstone.plugins import OptionError, validate_options
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
    network: Literal["none", "open"] = "none"
    """Network of the container: only its own loopback, or that of the runtime, without a list of permitted hosts."""
    build_network: Literal["none", "open"] = "none"
    """Network of `RUN` instructions while the image is built."""
    cpus: float = 1.0
    """Maximum number of processors that the container uses."""

    def __post_init__(self) -> None:
        sources = [name for name in ("image", "build", "rootfs") if getattr(self, name)]
        if len(sources) != 1:
            keys = " and ".join(sources) or "none of them"
            raise SandboxError(f"sandbox.container: set one of image, build and rootfs; got {keys}")
        if not self.cpus > 0:
            raise SandboxError(f"sandbox.cpus: must be above 0, got {self.cpus:g}")


def parse_container_options(values: Mapping[str, Any]) -> ContainerOptions:
    """Return the options in a recipe's `sandbox: {container: …}`.

    Raises:
        OptionError: A key does not exist or has a value of another type.
    """
    try:
        return ContainerOptions(**validate_options(ContainerOptions, dict(values)))
    except OptionError as error:
        raise OptionError(f"sandbox.{error.key}", error.message) from None
