"""Applications on the bus: announced as `turnbuckle apply` does, withdrawn as `turnbuckle delete` does.

The entry of the bucket `pod_selectors` lists what was declared in Kubernetes, so an application that was announced
by hand is neither overwritten nor withdrawn. It is written before the AppSpec and cleared after it: what this operator
has announced is always listed. There is one operator; a second one would fail its compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from schemas.kubeoperator import SELECTORS_KEY, PodSelector, PodSelectors
from schemas.streams import APPS, POD_SELECTORS
from services._runtime.bus.api import Bus, BusError
from services.kubeoperator.core.declaration import Declaration, Refusal


class Announcements:
    """Writes declarations to the bus. Methods raise `BusError`; all of them can be repeated."""

    def __init__(self, bus: Bus, on_write: Callable[[], None] = lambda: None) -> None:
        self._apps = bus.bucket(APPS)
        self._table = bus.bucket(POD_SELECTORS)
        self._on_write = on_write
        self._lock = asyncio.Lock()

    async def announce(self, declaration: Declaration) -> Declaration | Refusal:
        """Make the bus hold what is declared; writes only what differs.

        Returns:
            the declaration, or why the application belongs to another object or to no object in Kubernetes.
        """
        source, spec = declaration.declared_by, declaration.spec
        async with self._lock:
            rows, revision = await self._rows()
            announced = await self._apps.get(spec.name)
            owner = next((row.declared_by for row in rows if row.app == spec.name), None)
            if owner is None and announced is not None:
                owner = "`turnbuckle apply`"
            if owner not in (None, source):
                message = f"application {spec.name!r} is declared by {owner}"
                return Refusal(source, spec.name, "NameTaken", message)
            await self._withdraw(rows, {row.app for row in rows if row.declared_by == source} - {spec.name})
            wanted = [row for row in rows if row.declared_by != source] + list(declaration.selectors)
            await self._store(wanted, rows, revision)
            if announced is None or announced.message != spec:
                await self._apps.put(spec.name, spec)
                self._on_write()
        return declaration

    async def withdraw(self, declared_by: Iterable[str]) -> None:
        """Withdraw whatever these objects declared."""
        gone = set(declared_by)
        async with self._lock:
            rows, revision = await self._rows()
            await self._withdraw(rows, {row.app for row in rows if row.declared_by in gone})
            await self._store([row for row in rows if row.declared_by not in gone], rows, revision)

    async def sources(self) -> set[str]:
        """The objects whose declarations are announced."""
        return {row.declared_by for row in (await self._rows())[0]}

    async def _rows(self) -> tuple[list[PodSelector], int | None]:
        entry = await self._table.get(SELECTORS_KEY)
        if entry is None:
            return [], None
        if not isinstance(entry.message, PodSelectors):
            raise BusError(f"{SELECTORS_KEY} in {POD_SELECTORS.name} cannot be read: whose applications are whose?")
        return list(entry.message.selectors), entry.revision

    async def _withdraw(self, rows: list[PodSelector], apps: set[str]) -> None:
        for app in sorted(apps & {row.app for row in rows}):
            await self._apps.delete(app)
            self._on_write()

    async def _store(self, wanted: list[PodSelector], rows: list[PodSelector], revision: int | None) -> None:
        wanted.sort(key=lambda row: (row.app, row.namespace))
        if wanted == rows:
            return
        table = PodSelectors(selectors=tuple(wanted))
        if revision is None:
            await self._table.create(SELECTORS_KEY, table)
        else:
            await self._table.update(SELECTORS_KEY, table, revision)
