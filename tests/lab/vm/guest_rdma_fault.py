"""A silent fault of the loaded uplink in mid-run of an unmodified ib_send_lat; runs in the machine with the switches.

Arguments: port of the server, bytes of a message, messages, seconds for all of them. Prints one JSON object. Imports
nothing of the project: every import takes long here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

HOST, VTEP, ADDRESS = "h1", "10.255.0.2", "172.16.0.2"
RULES_DEVICE = "vxenc0"
"""Where rules of ours redirect to, and nothing else. A rule's own counter begins anew with a rule that is put back."""
QP_TIMEOUT = 19
"""4.096 us * 2^19 = 2.1 s until a message is sent again, 7 times: beyond detection by BFD, 5 s."""
LARGEST_ROCE_MTU_BYTES = 4_096


def tell(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def sent(device: str) -> int:
    path = f"/sys/class/net/{device}/statistics/tx_packets"
    return int(tell("ip", "netns", "exec", HOST, "cat", path))


def uplinks() -> list[str]:
    """Those that the kernel uses for the other VTEP."""
    routes = json.loads(tell("ip", "-n", HOST, "-j", "route", "show", VTEP))
    found = [hop["dev"] for route in routes for hop in route.get("nexthops", [route])]
    return sorted(found)


def fault(switch: str, *, begins: bool) -> None:
    """Both directions of the switch's port to the host, carrier stays: a cBPF program that keeps nothing."""
    if not begins:
        tell("tc", "-n", switch, "qdisc", "del", "dev", "d1", "clsact")
        return
    tell("tc", "-n", switch, "qdisc", "add", "dev", "d1", "clsact")
    for way in ("ingress", "egress"):
        tell("tc", "-n", switch, *f"filter add dev d1 {way} bpf da bytecode".split(), "1,6 0 0 2")


def loaded(before: dict[str, int]) -> str:
    return max(before, key=lambda device: sent(device) - before[device])


def latencies_us(output: str) -> list[float]:
    """Half of each round trip, as `ib_send_lat -U` prints them: number, microseconds."""
    found = []
    for line in output.splitlines():
        fields = line.replace(",", " ").split()
        if len(fields) == 2 and fields[0].isdigit():
            found.append(float(fields[1]))
    return found


def summary(samples: list[float]) -> dict[str, object]:
    """Of the messages."""
    if not samples:
        return {"messages": 0}
    ordered = sorted(samples)
    return {
        "messages": len(ordered),
        "p50_ms": ordered[len(ordered) // 2] / 1e3,
        "p99_ms": ordered[int(len(ordered) * 0.99)] / 1e3,
        "longest_ms": ordered[-1] / 1e3,
        # A message takes seconds where other work has the processor, and one takes half as long again as another.
        "late": sum(each > 1.5 * ordered[len(ordered) // 2] + 1e6 for each in ordered),
    }


def ended(client: subprocess.Popen[bytes], within_s: float) -> int:
    """Its exit code; who polls for ever is killed."""
    try:
        return client.wait(within_s)
    except subprocess.TimeoutExpired:
        client.kill()
        return client.wait()


def fault_in_mid_run(
    client: subprocess.Popen[bytes], fault_at: int, before: dict[str, int], within_s: float
) -> dict[str, object]:
    """Wait until the client is under way, break its uplink until it has ended, and wait until both are used again.

    ``fault_at``: packets by our rules.
    """
    usual = uplinks()
    while sent(RULES_DEVICE) < fault_at and client.poll() is None:
        time.sleep(0.1)
    device = loaded(before)
    switch = f"s{device[1]}"
    started_s = time.monotonic()
    fault(switch, begins=True)
    found: dict[str, object] = {"uplinks_before": usual, "faulty": device, "client_ran_at_fault": client.poll() is None}
    while device in uplinks() and time.monotonic() < started_s + 60:
        time.sleep(0.2)
    found |= {"left_after_s": round(time.monotonic() - started_s, 1), "uplinks_during": uplinks()}
    # Until the end: what came through after the fault came through beside it.
    found["exit_code"] = ended(client, within_s)
    cured_s = time.monotonic()
    fault(switch, begins=False)
    while uplinks() != usual and time.monotonic() < cured_s + 90:
        time.sleep(0.5)
    return found | {"uplinks_after": uplinks()}


def main() -> None:
    """Client, fault, cure, outcome."""
    port, size_bytes, messages, within_s = sys.argv[1:]
    packets, tunnel = sent(RULES_DEVICE), sent("vx100")
    # In mid-run: a quarter of what the largest packets would be.
    fault_at = packets + int(size_bytes) * int(messages) // LARGEST_ROCE_MTU_BYTES // 4
    before = {device: sent(device) for device in ("p1", "p2")}
    # fmt: off
    command = ["ib_send_lat", "-d", "rxe0", "-x", "1", "-s", size_bytes, "-n", messages,
               "-u", str(QP_TIMEOUT), "-U", "-p", port, ADDRESS]
    # fmt: on
    with Path("/run/client").open("wb") as said:
        client = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        found = fault_in_mid_run(client, fault_at, before, float(within_s))
    output = Path("/run/client").read_text(encoding="utf-8", errors="replace")
    samples = latencies_us(output)
    found |= summary(samples)
    found |= {"rule_packets": sent(RULES_DEVICE) - packets, "tunnel_packets": sent("vx100") - tunnel}
    found["client"] = "" if samples else output[-2000:]
    print(json.dumps(found))  # noqa: T201 - its result


if __name__ == "__main__":
    main()
