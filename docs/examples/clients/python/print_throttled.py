"""Print every throttled container: ``python print_throttled.py`` (needs nats-py and msgpack; nkeys with a key)."""

import asyncio
import os
import ssl
from contextlib import suppress

import nats
from turnbuckle_client import subjects
from turnbuckle_client.decode import decode, rows


async def main() -> None:
    """Subscribe to all applications on all nodes and print until interrupted."""
    url, authority = os.environ.get("NATS_URL", "nats://127.0.0.1:4222"), os.environ.get("NATS_CA")
    tls = ssl.create_default_context(cafile=authority) if authority else None
    connection = await nats.connect(url, tls=tls, nkeys_seed=os.environ.get("NATS_NKEY"))
    batches = await connection.subscribe(subjects.cfs_batch())
    await connection.flush()
    print("subscribed", flush=True)
    async for received in batches.messages:
        batch = decode(received.data)
        for row in rows(batch):
            if row["throttled_us"]:  # known at the throttling's end: after an early report, in the next sample
                print(batch["app"], batch["node"], row["container"], f"{row['throttled_us']} us", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
