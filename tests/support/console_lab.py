"""What tests of the web console stand on: processes, pages, a network and a job that are told, messages to decode."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from schemas.jobs import Configuration, TaskFeatures
from schemas.message import Message
from schemas.network import NetworkStateReply, PathState, RulesReply, RuleState, TcEvent
from schemas.predictions import ConfigurationPrediction, Estimate, ModelName, Prediction
from schemas.subjects import PREDICTIONS, RECONCILER_RULES, RECONCILER_STATE, TC_EVENTS
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions

CLI = [sys.executable, "-m", "services.cli"]
WITHIN_MS = 60_000
HOSTILE = "<img src=x onerror=alert(1)>"
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
FAINT_OR_SMALL = """() => {
  const channels = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (element) => {
    for (let at = element; at !== null; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const element of document.querySelectorAll("header *, #panel *, #feed *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim() !== "");
    if (!own || element.closest("svg, canvas") || element.getClientRects().length === 0) continue;
    const style = getComputedStyle(element);
    const [one, other] = [light(channels(style.color)), light(ground(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5 || parseFloat(style.fontSize) < 11) {
      bad.push(`${element.textContent.slice(0, 30)}: ${contrast.toFixed(2)}, ${style.fontSize}`);
    }
  }
  return [...new Set(bad)];
}"""
"""Texts of a page that are smaller than 11 px, or fainter than 4.5 to 1 (WCAG AA)."""


@dataclass
class Stack:
    """What runs: a bus with services, the console, a browser."""

    bus: NatsBus
    nats_url: str
    url: str
    chromium: Any
    complaints: list[str] = field(default_factory=list)
    """What pages logged, threw, or asked of others."""

    async def page(self, **options: Any) -> Any:
        """A new page that shows the console, live."""
        profile = await self.chromium.new_context(**{"viewport": DESKTOP, **options})
        return await self.show(await profile.new_page(), self.url)

    async def beside(self, page: Any, url: str) -> Any:
        """Another page of the same browser profile, which has the key already, at this address."""
        return await self.show(await page.context.new_page(), url)

    async def show(self, opened: Any, url: str) -> Any:
        """Open an address of the console, and wait until it is live."""
        opened.set_default_timeout(WITHIN_MS)
        opened.on("console", lambda said: self.complaints.append(said.text))
        opened.on("pageerror", lambda error: self.complaints.append(str(error)))
        opened.on("request", self._note_foreign)
        await opened.goto(url)
        await opened.wait_for_selector("#link.live", timeout=WITHIN_MS)
        return opened

    @property
    def address(self) -> str:
        """Without the key."""
        return self.url.partition("#")[0]

    def _note_foreign(self, request: Any) -> None:
        if not request.url.startswith(self.address):
            self.complaints.append(f"asked for {request.url}")


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "TURNBUCKLE_"))}
    return kept | {"PYTHONUNBUFFERED": "1"}


def launch(*arguments: str, **settings: str) -> subprocess.Popen[str]:
    given = {f"TURNBUCKLE_{name}": value for name, value in settings.items()}
    return subprocess.Popen(
        [*CLI, *arguments], env=environment() | given, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """By Ctrl-C; returns the exit code and stderr."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


async def console_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 60)
    assert line, f"no address: {process.stderr.read() if process.stderr else ''}"
    return str(json.loads(line)["url"])


async def connect(url: str) -> NatsBus:
    return await NatsBus.connect(BusOptions(servers=(url,), connect_deadline_s=60.0))


async def tell_of_a_network(bus: NatsBus) -> None:
    """Two hosts; the fast path of the first has taken up0 out."""
    vteps = {"gpu-01": "10.0.0.1", "gpu-02": "10.0.0.2"}
    both = ("169.254.0.1@up0", "169.254.0.1@up1")
    for node, own in vteps.items():
        remote = next(vtep for vtep in vteps.values() if vtep != own)
        cut = node == "gpu-01"
        path = PathState(
            destination=remote,
            kernel=both,
            frr=both,
            bfd_up=("up1",) if cut else ("up0", "up1"),
            agree=not cut,
            override=("169.254.0.1@up1",) if cut else (),
            reason="up0's BFD session is down" if cut else "",
        )
        state = NetworkStateReply(
            node=node,
            incarnation=1,
            offload="prefer",
            full_reconciles=3,
            writes=9,
            last_reconcile_age_s=1.0,
            ports=("rep0",),
            encapsulation_device="vxlan-tx",
            vteps=(remote,),
            macs=2,
            installed=2,
            in_hw=1,
            not_in_hw=1,
            unmanaged=0,
            paths=(path,),
            problems=(),
        )
        rule = RuleState(device="rep0", mac="02:00:00:00:00:07", vtep=remote, vni=100, in_hw=True, note=HOSTILE)
        await serve(bus, RECONCILER_STATE.subject(bus.root, node=node), state)
        await serve(bus, RECONCILER_RULES.subject(bus.root, node=node), RulesReply(node=node, total=1, rules=(rule,)))
        event = TcEvent(node=node, incarnation=1, pass_id=1, time_ns=time.time_ns(), causes={"start": 1}, verified=True)
        bus.publish_event(TC_EVENTS.subject(bus.root, node=node), event, message_id=f"tc-{node}")
    await bus.flush(60)


async def serve(bus: NatsBus, subject: Any, answer: Message) -> None:
    async def responder(_: object) -> Message:
        return answer

    await bus.serve(subject, responder)


async def tell_of_a_job(bus: NatsBus) -> None:
    def predicted(machine: str, time_s: float, cost_usd: float, *, pareto: bool) -> ConfigurationPrediction:
        def around(value: float) -> Estimate:
            return Estimate(median=value, low=value / 2, high=value * 2)

        return ConfigurationPrediction(
            configuration=Configuration(instance_type=machine, workers=2),
            time_s=around(time_s),
            cost_usd=around(cost_usd),
            pareto=pareto,
            reasons=("fewer cores",),
        )

    prediction = Prediction(
        job="resnet",
        task=TaskFeatures(task="image"),
        prices_as_of=None,
        level=0.9,
        considered=3,
        model=ModelName(model="gp", version="v1", data_hash="", records=1, tasks=1, trained_ns=0),
        predictions=(
            predicted("fast", 600, 3.0, pareto=True),
            predicted("cheap", 3600, 1.0, pareto=True),
            predicted("neither", 4000, 4.0, pareto=False),
        ),
        time_ns=time.time_ns(),
    )
    bus.publish_event(PREDICTIONS.subject(bus.root, job="resnet"), prediction, message_id="resnet")
    await bus.flush(60)
