"""The message bus: NATS with JetStream."""

from services._runtime.skipped_import import not_imported

with not_imported("aiohttp"):  # nats-py's websockets, which `nats_tls` refuses: a sixth of a service's start
    import nats.aio.client  # noqa: F401 - imported here before anything else imports it
