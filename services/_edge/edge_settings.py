"""Settings that the processes of the network edge share; each has variables of its own for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from services._edge.frr import DIRECTORY
from services._runtime.service.settings import NodeSettings


class EdgeSettings(NodeSettings):
    """Which network namespace, and which FRR."""

    netns: Annotated[
        str | None, Field(description="network namespace to manage, by name or path; unset: the process' own")
    ] = None
    frr_pathspace: Annotated[
        str | None, Field(description="FRR's `-N` name of the daemons to ask; unset: the host's own")
    ] = None
    frr_directory: Annotated[Path, Field(description="where FRR's sockets are, without the pathspace")] = DIRECTORY
    state_directory: Annotated[
        Path, Field(description="locks against a second one in the same namespace; best on a tmpfs")
    ] = Path("/run/turnbuckle")
    event_buffer_bytes: Annotated[
        int,
        Field(ge=4_096, le=1 << 30, description="receive buffer of kernel events; when it overflows all is read anew"),
    ] = 32 << 20
