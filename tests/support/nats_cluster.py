"""Three real servers on the loopback that keep JetStream together."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Self

import nats
import nats.errors
import nats.js.errors
from nats.js import JetStreamContext

from services._runtime.bus.embedded_server import EmbeddedNats
from services.cli.toolkit.supervisor import free_port

SIZE = 3


class NatsCluster:
    """Any of them may be killed and started again."""

    def __init__(self, directory: Path) -> None:
        routes = [free_port() for _ in range(SIZE)]
        self.servers = [
            EmbeddedNats(
                port=free_port(),
                store_directory=directory / f"nats-{number}",
                extra_configuration="\n".join(
                    [
                        f"server_name: nats-{number}",
                        "cluster {",
                        "  name: turnbuckle",
                        f'  listen: "127.0.0.1:{routes[number]}"',
                        f"  routes: {[f'nats-route://127.0.0.1:{port}' for port in routes if port != routes[number]]}",
                        "  no_advertise: true",
                        "}",
                    ]
                ).replace("'", '"'),
            )
            for number in range(SIZE)
        ]

    @property
    def urls(self) -> tuple[str, ...]:
        """Of all servers."""
        return tuple(server.url for server in self.servers)

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(server.start() for server in self.servers))
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers:
            server.kill()
            await server.stop()

    async def leader(self, jetstream: JetStreamContext, stream: str) -> int:
        """Which server leads a stream."""
        info = await jetstream.stream_info(stream)
        assert info.cluster is not None
        assert info.cluster.leader is not None
        return int(info.cluster.leader.removeprefix("nats-"))

    async def until_whole(self, streams: list[str], within_s: float = 60.0) -> None:
        """Wait until every stream has its three copies, all up to date."""
        deadline, lacking = time.monotonic() + within_s, list(streams)
        client = await nats.connect(list(self.urls), error_cb=_ignore)
        jetstream = client.jetstream(timeout=2)
        while lacking:
            with contextlib.suppress(nats.errors.Error, nats.js.errors.APIError, TimeoutError):
                info = await jetstream.stream_info(lacking[0])
                replicas = (info.cluster.replicas or []) if info.cluster else []
                if len(replicas) == SIZE - 1 and all(each.current and not each.offline for each in replicas):
                    lacking.pop(0)
                    continue
            assert time.monotonic() < deadline, f"{lacking} lack copies"
            await asyncio.sleep(0.1)
        await client.close()


async def _ignore(_error: Exception) -> None:
    """Servers come and go."""
