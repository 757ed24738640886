"""An API server at the wire, in process: what kopf asks of one, with the rules that an operator depends on.

Lists, watches with resource versions, merge and JSON patches, the status subresource (a patch of the object does not
change its status and the other way round), generations, finalizers that keep a deleted object, and events.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonpatch  # type: ignore[import-untyped]
import yaml
from aiohttp import web

Manifest = dict[str, Any]
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
RESOURCES = {
    "/api/v1": [("namespaces", "Namespace", False, False), ("events", "Event", True, False)],
    "/apis/turnbuckle.dev/v1alpha1": [("applications", "Application", True, True)],
    "/apis/apiextensions.k8s.io/v1": [("customresourcedefinitions", "CustomResourceDefinition", False, False)],
}


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


@dataclass
class KubernetesApi:
    """State of a cluster, and the server that shows it."""

    objects: dict[tuple[str, str | None, str], Manifest] = field(default_factory=dict)
    """By plural, namespace and name."""
    history: dict[str, list[Manifest]] = field(default_factory=lambda: defaultdict(list))
    """Watch events by plural."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    revision: int = 1
    url: str = ""

    def __post_init__(self) -> None:
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def kubeconfig(self, path: Path) -> Path:
        """A file that names this server."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": self.url}}],
            "users": [{"name": "it", "user": {}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    # -- what a user does ----------------------------------------------------------------------------------------

    async def apply(self, plural: str, manifest: Manifest) -> None:
        """Create, or change what is not the status."""
        metadata = manifest["metadata"]
        key = (plural, metadata.get("namespace"), metadata["name"])
        old = self.objects.get(key)
        if old is None:
            new = copy.deepcopy(manifest)
            new["metadata"] |= {"uid": f"uid-{self.revision}", "generation": 1}
            new["metadata"]["creationTimestamp"] = "2026-11-24T00:00:00Z"
        else:
            new = old | {key: value for key, value in manifest.items() if key not in ("metadata", "status")}
            new["metadata"] = old["metadata"] | metadata
        await self._store(key, new)

    async def delete(self, plural: str, namespace: str | None, name: str) -> None:
        """With finalizers: only marked, until the last one is taken away."""
        key = (plural, namespace, name)
        new = copy.deepcopy(self.objects[key])
        new["metadata"]["deletionTimestamp"] = "2026-11-24T00:00:01Z"
        await self._store(key, new)

    def events(self, reason: str) -> list[Manifest]:
        return [each for key, each in self.objects.items() if key[0] == "events" and each["reason"] == reason]

    # -- storage -------------------------------------------------------------------------------------------------

    async def _store(self, key: tuple[str, str | None, str], new: Manifest) -> Manifest:
        old = self.objects.get(key)
        metadata = new["metadata"]
        same = old is not None and {**old, "metadata": {**old["metadata"]}} == new
        if same and old is not None:
            return old
        if old is not None and old.get("spec") != new.get("spec"):
            metadata["generation"] = metadata.get("generation", 0) + 1
        self.revision += 1
        metadata["resourceVersion"] = str(self.revision)
        change = "ADDED" if old is None else "MODIFIED"
        self.objects[key] = new
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            del self.objects[key]
            change = "DELETED"
        async with self._changed:
            self.history[key[0]].append({"type": change, "object": copy.deepcopy(new)})
            self._changed.notify_all()
        return new

    # -- the wire ------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = urlsplit(str(request.rel_url)).path
        self.requests.append((request.method, path))
        if path == "/version":
            return web.json_response({"major": "1", "minor": "35", "gitVersion": "v1.35.0"})
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        if path == "/apis":
            groups = [prefix.split("/")[2:] for prefix in RESOURCES if prefix.startswith("/apis/")]
            return web.json_response({"groups": [_group(*group) for group in groups]})
        if path in RESOURCES:
            return web.json_response({"resources": [_resource(each) for each in _with_status(RESOURCES[path])]})
        for prefix, resources in RESOURCES.items():
            if path.startswith(f"{prefix}/"):
                return await self._answer_resource(request, path.removeprefix(f"{prefix}/").split("/"), resources)
        return _error(404, "NotFound")

    async def _answer_resource(
        self, request: web.Request, parts: list[str], resources: list[tuple[str, str, bool, bool]]
    ) -> web.StreamResponse:
        namespace = None
        plurals = {plural: kind for plural, kind, *_ in resources}
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, *rest = parts
        if plural not in plurals:
            return _error(404, "NotFound")
        if not rest:
            if request.method == "POST":
                return await self._create(request, plural, namespace)
            return await self._list(request, plural, plurals[plural])
        key = (plural, namespace, rest[0])
        if key not in self.objects:
            return _error(404, "NotFound")
        if request.method == "PATCH":
            return await self._patch(request, key, rest[1] if len(rest) > 1 else None)
        return web.json_response(self.objects[key])

    async def _create(self, request: web.Request, plural: str, namespace: str | None) -> web.Response:
        body = await request.json()
        body["metadata"].setdefault("name", f"{body['metadata'].get('generateName', '')}{self.revision}")
        body["metadata"]["namespace"] = namespace
        await self.apply(plural, body)
        return web.json_response(body, status=201)

    async def _list(self, request: web.Request, plural: str, kind: str) -> web.StreamResponse:
        if "watch" not in request.query:
            items = [each for key, each in self.objects.items() if key[0] == plural]
            metadata = {"resourceVersion": str(self.revision)}
            return web.json_response({"kind": f"{kind}List", "metadata": metadata, "items": items})
        since = int(request.query.get("resourceVersion") or 0)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            async with self._changed:
                while not (events := self._newer(plural, since)):
                    await self._changed.wait()
            for event in events:
                await response.write(json.dumps(event).encode() + b"\n")
                since = int(event["object"]["metadata"]["resourceVersion"])

    def _newer(self, plural: str, since: int) -> list[Manifest]:
        return [each for each in self.history[plural] if int(each["object"]["metadata"]["resourceVersion"]) > since]

    async def _patch(self, request: web.Request, key: tuple[str, str | None, str], part: str | None) -> web.Response:
        old, patch = self.objects[key], await request.json()
        if request.content_type == "application/json-patch+json":
            try:
                new = jsonpatch.apply_patch(old, patch)
            except jsonpatch.JsonPatchTestFailed:
                return _error(422, "Invalid")
        else:
            new = merge(copy.deepcopy(old), patch)
        if part == "status":
            new = copy.deepcopy(old) | ({"status": new["status"]} if "status" in new else {})
        elif key[0] == "applications":  # its status is a subresource
            new.pop("status", None)
            new |= {"status": copy.deepcopy(old["status"])} if "status" in old else {}
        return web.json_response(await self._store(key, copy.deepcopy(new)))


def _group(name: str, version: str) -> Manifest:
    named = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [named], "preferredVersion": named}


def _with_status(resources: list[tuple[str, str, bool, bool]]) -> list[tuple[str, str, bool, bool]]:
    of_status = [(f"{name}/status", kind, where, False) for name, kind, where, status in resources if status]
    return [*resources, *of_status]


def _resource(each: tuple[str, str, bool, bool]) -> Manifest:
    plural, kind, namespaced, _ = each
    return {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": namespaced, "verbs": VERBS}


def _error(code: int, reason: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "reason": reason, "code": code}, status=code)
