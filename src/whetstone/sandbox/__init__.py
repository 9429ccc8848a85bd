"""Sandbox: processes that run untrusted code and cannot harm the machine."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.sandbox.containers.container_options import (
        CONTAINER_LIMITS as CONTAINER_LIMITS,
        ContainerOptions as ContainerOptions,
    )
    from whetstone.sandbox.containers.container_pool import (
        ContainerPool as ContainerPool,
        shared_containers as shared_containers,
    )
    from whetstone.sandbox.isolation import (
        Isolation as Isolation,
        Offer as Offer,
        missing_guarantees as missing_guarantees,
        find_bwrap as find_bwrap,
        list_isolation_layers as list_isolation_layers,
    )
    from whetstone.sandbox.limits import Limits as Limits
    from whetstone.sandbox.pool import Sandbox as Sandbox
    from whetstone.sandbox.protocol import Ending as Ending, Outcome as Outcome, SandboxSession as SandboxSession
    from whetstone.sandbox.session import Session as Session
    from whetstone.sandbox.shared_pool import shared_sandbox as shared_sandbox

__getattr__, __dir__ = export_lazily(__name__)
