"""The price catalogue: files, days, preferences, SkyPilot's format, and the tool."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.advisor.core.catalogue import BadCatalogueError, Snapshot, listing, parse_snapshot, times_factor, to_plain
from services.advisor.core.skypilot_catalogue import parse_skypilot
from services.advisor.price_files import SHIPPED, read_snapshots, user_directory, write_snapshot
from services.advisor.prices import main
from tests.support.training_jobs import records

DIGESTS = {"gcp-gce": "8e19ea57f4cd6bf1", "gcp-vertex": "ea2d0695b6f6abca"}
"""Of the shipped files before machines could have accelerators."""

HEADER = "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice"
SKYPILOT = f"""{HEADER}
n1-standard-4,4.0,15.0,,,,us-central1,us-central1-a,0.19,0.04
n1-standard-4,4.0,15.0,,,,us-central1,us-central1-b,0.19,0.03
n1-standard-4,4.0,15.0,,,,europe-west4,europe-west4-a,0.21,
n1-highmem-8,8.0,52.0,T4,1.0,,us-central1,us-central1-a,0.5,0.2
e2-standard-16,16.0,64.0,,,,us-central1,us-central1-a,0.536,
c9-preview,2.0,4.0,,,,us-central1,us-central1-a,,
"""


def snapshot(source: str = "s", day: str = "2026-01-01", usd: float = 1.0, **fields: Any) -> Snapshot:
    machine = {"instance_type": "m", "vcpu": 2, "memory_gb": 4, "usd_per_hour": usd} | fields
    plain = {
        "format": 1,
        "source": source,
        "provider": "gcp",
        "region": "r",
        "as_of": day,
        "note": "",
        "machines": [machine],
    }
    return parse_snapshot(json.dumps(plain), "test")


def price(found: Any, name: str = "m") -> Any:
    return found.machines["gcp", name][1]


def test_the_shipped_snapshots() -> None:
    """Seven machines each, as of their day, with a note that nobody has checked them; Vertex at 1.15 times GCE."""
    found, problems = read_snapshots([SHIPPED])

    assert problems == []
    by_source = {one.source: one for one in found}
    assert set(by_source) == {"gcp-gce", "gcp-vertex"}
    for one in found:
        assert len(one.machines) == 7
        assert "not checked against Google's list" in one.note
        assert not one.checked
    gce, vertex = (
        {each.instance_type: each for each in by_source[name].machines} for name in ("gcp-gce", "gcp-vertex")
    )
    for name, machine in gce.items():
        assert vertex[name].usd_per_hour == pytest.approx(1.15 * machine.usd_per_hour, abs=1e-5)
    highcpu = gce["n1-highcpu-32"]
    assert (highcpu.vcpu, highcpu.memory_gb) == (32.0, 28.8)


def test_the_newest_of_the_day_or_before_counts() -> None:
    """Old snapshots answer for their days."""
    held = [
        snapshot(day="2026-01-01", usd=1.0),
        snapshot(day="2026-03-01", usd=3.0),
        snapshot(day="2026-02-01", usd=2.0),
    ]

    assert price(listing(held, (), None)).usd_per_hour == 3.0
    assert price(listing(held, (), date(2026, 2, 28))).usd_per_hour == 2.0
    assert listing(held, (), date(2025, 12, 31)).machines == {}


def test_the_preferred_source_counts() -> None:
    """Where several list a machine."""
    held = [snapshot("dear", usd=9.0), snapshot("cheap", usd=1.0)]

    assert price(listing(held, ("dear",), None)).source == "dear"
    assert price(listing(held, ("cheap", "dear"), None)).source == "cheap"


def test_checked_prices_go_before_unchecked_ones() -> None:
    """So a refreshed catalogue counts at once; who names a source gets that."""
    held = [dataclasses.replace(snapshot("a", usd=9.0), checked=False), snapshot("z", usd=1.0)]

    assert price(listing(held, (), None)).source == "z"
    assert price(listing(held, ("a",), None)).source == "a"


def test_machines_that_only_records_know() -> None:
    """Have the price of the newest record; a listed one keeps the catalogue's."""
    found = listing([snapshot()], (), None, records(("a",)))

    assert found.machines["emulated", "large"][1].usd_per_hour == 0.20
    assert found.providers() == {"emulated", "gcp"}


def test_unchecked_sources_are_named() -> None:
    """Only of the snapshots that count."""
    old = dataclasses.replace(snapshot("s", "2026-01-01"), checked=False)

    assert listing([old], (), None).unchecked == {"s"}
    assert listing([old, snapshot("s", "2026-02-01")], (), None).unchecked == frozenset()


def test_the_digest_is_of_the_prices() -> None:
    """The same prices are the same snapshot, another price is another."""
    assert snapshot().digest == snapshot().digest
    assert len({snapshot().digest, snapshot(usd=2.0).digest, snapshot(day="2026-01-02").digest}) == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"usd": -1.0}, "usd_per_hour is -1.0"),
        ({"usd": float("nan")}, "usd_per_hour is nan"),
        ({"vcpu": "many"}, "could not convert"),
        ({"spot_usd_per_hour": -0.1}, "spot_usd_per_hour is -0.1"),
        ({"vcpu": 10**400}, "too large"),
        ({"instance_type": ""}, "instance_type is empty"),
        ({"source": "../elsewhere"}, "source .* must be letters"),
        ({"source": "/elsewhere"}, "source .* must be letters"),
    ],
)
def test_absurd_prices(fields: dict[str, Any], words: str) -> None:
    """Named with their place."""
    with pytest.raises(BadCatalogueError, match=words):
        snapshot(**fields)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no price snapshot"),
        ("[]", "no price snapshot"),
        ("[" * 100_000, "no price snapshot"),
        ('{"format": 3}', "format 3 is not 1 or 2"),
        ('{"format": 1, "source": "s"}', "machines"),
    ],
)
def test_files_that_are_no_snapshots(text: str, words: str) -> None:
    """Each says what it lacks."""
    with pytest.raises(BadCatalogueError, match=words):
        parse_snapshot(text, "x.json")


def empty(region: str = "us-central1") -> Snapshot:
    return Snapshot("gcp-skypilot", "gcp", date(2026, 11, 21), region, "", ())


def test_skypilots_catalogue() -> None:
    """Machines of one region, lowest zone, spot where there is one; no price: left out, and said."""
    found = parse_skypilot(SKYPILOT, empty(), "vms.csv")

    assert [(one.instance_type, one.usd_per_hour, one.spot_usd_per_hour) for one in found.machines] == [
        ("e2-standard-16", 0.536, None),
        ("n1-highmem-8+1xT4", 0.5, 0.2),
        ("n1-standard-4", 0.19, 0.03),
    ]
    assert found.left_out == ("1 without a price: c9-preview",)


ZEROS = f"""{HEADER}
n1-standard-4,4.0,15.0,,,,us-central1,us-central1-a,0.19,0.0
n2-standard-2,2.0,8.0,,,,us-central1,us-central1-a,0.0,0.0
n2-standard-4,4.0,16.0,,,,us-central1,us-central1-a,,
n2-standard-8,8.0,32.0,,,,us-central1,us-central1-a,nan,
n2-standard-16,16.0,64.0,,,,us-central1,us-central1-a,0.8,0.9
"""


def test_a_price_of_zero_is_no_price() -> None:
    """SkyPilot #2496: an n2-standard-2 for nothing, chosen. Left out and counted, as an empty one; nan is named."""
    found = parse_skypilot(ZEROS, empty(), "vms.csv")

    assert [(one.instance_type, one.usd_per_hour, one.spot_usd_per_hour) for one in found.machines] == [
        ("n1-standard-4", 0.19, None),
        ("n2-standard-16", 0.8, 0.9),
    ]
    assert found.left_out == (
        "1 kept with a spot price above the price on demand: n2-standard-16",
        "1 unreadable: n2-standard-8 (line 5: nan must be a number that is not negative)",
        "2 without a price: n2-standard-2, n2-standard-4",
    )


def test_a_stored_price_of_zero_is_no_price_either() -> None:
    """Files that an earlier version wrote, and those of users."""
    plain = to_plain(snapshot()) | {"machines": [{"instance_type": "m", "vcpu": 1, "memory_gb": 1, "usd_per_hour": 0}]}
    with pytest.raises(BadCatalogueError, match=r"holds no machine with a price \(1 without a price: m\)"):
        parse_snapshot(json.dumps(plain), "x.json")
    assert snapshot(spot_usd_per_hour=0).machines[0].spot_usd_per_hour is None


def test_records_with_a_price_of_zero_have_none() -> None:
    """From files and from the bus: their machines are not listed."""
    (record, *_) = records(("a",))
    assert record.price is not None
    free = record.model_copy(update={"price": record.price.model_copy(update={"usd_per_hour": 0.0})})

    assert listing([], (), None, [free]).machines == {}


@given(st.sampled_from(["0", "0.0", "nan", "", "-1", "inf", "1e400", "x", "0.5", "1e-300"]), st.text(max_size=5))
def test_no_listed_machine_is_free(price_cell: str, spot_cell: str) -> None:
    """Whatever the cells say: a positive price, or no machine; never a traceback."""
    quoted = spot_cell.replace('"', '""')
    text = f'{HEADER}\nm,1,1,,,,us-central1,z,{price_cell},"{quoted}"\nn,1,1,,,,us-central1,z,1,\n'
    try:
        found = parse_skypilot(text, empty(), "vms.csv")
    except BadCatalogueError:
        return
    assert all(one.usd_per_hour > 0 and (one.spot_usd_per_hour or 1) > 0 for one in found.machines)


def accelerator_rows(zone: str = "us-central1-a", gpu_info: str = "") -> str:
    return f"""a2-highgpu-1g,12.0,85.0,,,,us-central1,{zone},0.73948,0.29576
a2-highgpu-2g,24.0,170.0,,,,us-central1,{zone},1.47895,0.59151
g2-standard-999,9.0,9.0,,,,us-central1,{zone},1.0,
n1-standard-4,4.0,15.0,,,,us-central1,{zone},0.19,0.04
n1-standard-16,16.0,60.0,,,,us-central1,{zone},0.76,0.16
,,,A100,1.0,{gpu_info},us-central1,{zone},2.93391,0.88
,,,T4,1.0,,us-central1,{zone},0.35,
,,,V100,1.0,,us-central1,{zone},2.48,0.74
,,,V100,8.0,,us-central1,{zone},19.84,5.92
,,,tpu-v2-8,1.0,,us-central1,{zone},4.5,1.35
,,,X9,1.0,,us-central1,{zone},4.5,1.35
m5.4gpu,8.0,32.0,A10G,4.0,"{{'Gpus': [{{'MemoryInfo': {{'SizeInMiB': 22528}}}}]}}",us-central1,{zone},5.0,
m5.half,8.0,32.0,A10,0.5,,us-central1,{zone},5.0,
"""


def test_accelerators_of_skypilots_catalogue() -> None:
    """Built in with another row's price, attached to n1 within Google's limits, and built in with their own price."""
    found = parse_skypilot(f"{HEADER}\n{accelerator_rows()}", empty(), "vms.csv")
    by_name = {one.instance_type: one for one in found.machines}

    assert list(by_name) == [
        "a2-highgpu-1g",
        "m5.4gpu",
        "n1-standard-16",
        "n1-standard-16+1xT4",
        "n1-standard-16+8xV100",
        "n1-standard-4",
        "n1-standard-4+1xT4",
        "n1-standard-4+1xV100",
    ]
    built_in, attached = by_name["a2-highgpu-1g"], by_name["n1-standard-4+1xV100"]
    assert (built_in.usd_per_hour, built_in.spot_usd_per_hour) == (0.73948 + 2.93391, 1.17576)
    assert (built_in.accelerator, built_in.accelerators, built_in.accelerator_memory_gb) == ("A100-40GB", 1, 40)
    assert (built_in.vcpu, built_in.memory_gb, built_in.interconnect) == (12, 85, "none")
    assert (attached.usd_per_hour, attached.spot_usd_per_hour, attached.vcpu) == (2.67, 0.78, 4)
    assert by_name["n1-standard-16+8xV100"].interconnect == "nvlink"
    assert by_name["n1-standard-4+1xT4"].spot_usd_per_hour is None, "the T4 has none"
    own = by_name["m5.4gpu"]
    assert (own.usd_per_hour, own.accelerators, own.accelerator_memory_gb, own.interconnect) == (5.0, 4, 22, "pcie")
    assert by_name["n1-standard-4"].accelerators == 0
    assert found.left_out == (
        "1 TPUs, which are not read: tpu-v2-8",
        "1 accelerators of no known machine: 1 x X9",
        "1 with a part of an accelerator: m5.half",
        "2 without the price of their accelerators: a2-highgpu-2g, g2-standard-999",
    )


def test_accelerators_are_combined_within_their_zone() -> None:
    """A machine's price is of one zone, and the cheapest zone is used."""
    rows = accelerator_rows("us-central1-a") + accelerator_rows("us-central1-b").replace("0.35", "0.30")
    elsewhere = "n1-standard-8,8.0,30.0,,,,us-central1,us-central1-c,0.38,0.08\n"
    found = {
        one.instance_type: one for one in parse_skypilot(f"{HEADER}\n{rows}{elsewhere}", empty(), "vms.csv").machines
    }

    assert found["n1-standard-4+1xT4"].usd_per_hour == 0.49
    assert "n1-standard-8" in found
    assert "n1-standard-8+1xT4" not in found


@pytest.mark.parametrize("info", ['"{{{"', '"[]"', '"[' + "[" * 3_000 + '"', "9" * 5_000, "\"{'Gpus': []}\""])
def test_what_describes_no_gpu_leaves_the_tables_memory(info: str) -> None:
    found = parse_skypilot(f"{HEADER}\n{accelerator_rows(gpu_info=info)}", empty(), "vms.csv")
    assert found.machines[0].accelerator_memory_gb == 40


def test_files_with_accelerators_have_their_own_format() -> None:
    """An older version refuses them, instead of taking a V100 machine for a plain one. Others stay as they were."""
    found = parse_skypilot(f"{HEADER}\n{accelerator_rows()}", empty(), "vms.csv")
    plain = to_plain(found)

    assert plain["format"] == 2
    read = parse_snapshot(json.dumps(plain), "x.json")
    assert (read.machines, read.digest) == (found.machines, found.digest)
    assert to_plain(snapshot())["format"] == 1
    assert "accelerators" not in to_plain(snapshot())["machines"][0]


def test_digests_of_stored_snapshots_stay() -> None:
    """Records name them: as they were before machines could have accelerators."""
    found, _ = read_snapshots([SHIPPED])
    assert {one.source: one.digest for one in found} == DIGESTS


def test_the_factor_of_a_service() -> None:
    """Vertex AI bills more than its machines cost elsewhere."""
    found = times_factor(snapshot(usd=2.0, spot_usd_per_hour=1.0), 1.15)

    assert (found.machines[0].usd_per_hour, found.machines[0].spot_usd_per_hour) == (2.3, 1.15)
    assert "times 1.15" in found.note
    assert found.digest != snapshot(usd=2.0, spot_usd_per_hour=1.0).digest


def test_vertex_prices_go_before_compute_engines() -> None:
    """Jobs are submitted to Vertex AI; the other source is used where a question or a setting names it."""
    shipped, _ = read_snapshots([SHIPPED])
    first, chosen = listing(shipped, (), None), listing(shipped, ("gcp-gce",), None)

    assert price(first, "n1-standard-4").source == "gcp-vertex"
    assert price(chosen, "n1-standard-4").source == "gcp-gce"


def test_skypilots_catalogue_without_the_region_or_columns() -> None:
    """Says which regions there are, or which column is missing."""
    with pytest.raises(BadCatalogueError, match=r"no price for region 'mars'.*europe-west4, us-central1"):
        parse_skypilot(SKYPILOT, empty("mars"), "vms.csv")
    with pytest.raises(BadCatalogueError, match=r"no column .*SpotPrice"):
        parse_skypilot("InstanceType,Price\n", empty(), "vms.csv")


def test_what_is_no_csv_at_all() -> None:
    """Such as a binary file: a field without an end."""
    with pytest.raises(BadCatalogueError, match=r"vms\.csv:0 is no line of a CSV file"):
        parse_skypilot("x" * 200_000, empty(), "vms.csv")


def test_old_snapshots_stay(tmp_path: Path) -> None:
    """The same is written once, another one of the same day beside it; nothing is written over."""
    first, new = write_snapshot(snapshot(), tmp_path)
    again, not_new = write_snapshot(snapshot(), tmp_path)
    other, other_new = write_snapshot(snapshot(usd=2.0), tmp_path)

    assert (new, not_new, other_new) == (True, False, True)
    assert first == again != other
    assert len(read_snapshots([tmp_path])[0]) == 2


def test_a_bad_file_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    """It is reported."""
    write_snapshot(snapshot(), tmp_path)
    (tmp_path / "bad.json").write_text("{")

    found, problems = read_snapshots([tmp_path, tmp_path / "missing"])

    assert len(found) == 1
    assert len(problems) == 1
    assert "bad.json" in problems[0]


def test_where_refreshed_ones_are_kept() -> None:
    """As the XDG specification says."""
    assert user_directory({"XDG_DATA_HOME": "/d"}) == Path("/d/turnbuckle/prices")
    assert user_directory({"HOME": "/h"}) == Path("/h/.local/share/turnbuckle/prices")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_the_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refresh from SkyPilot's file, twice; list snapshots, and the machines of one."""
    csv = tmp_path / "vms.csv"
    csv.write_text(SKYPILOT)
    place = ("--directory", str(tmp_path / "kept"))

    code, events, _ = run(capsys, "refresh", "--skypilot", str(csv), "--as-of", "2026-11-20", *place)
    again = run(capsys, "refresh", "--skypilot", str(csv), "--as-of", "2026-11-20", *place)
    listed = run(capsys, "list", *place)
    machines = run(capsys, "list", "--source", "gcp-skypilot", *place)

    assert code == again[0] == 0
    assert (events[-1]["new"], events[-1]["machines"], events[-1]["spot"]) == (True, 3, 2)
    assert again[1][-1]["new"] is False
    assert [row["source"] for row in listed[1] if row["event"] == "row"] == ["gcp-gce", "gcp-skypilot", "gcp-vertex"]
    assert [row["instance_type"] for row in machines[1] if row["event"] == "row"] == [
        "e2-standard-16",
        "n1-highmem-8+1xT4",
        "n1-standard-4",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("refresh", "--file", "nothing.json"), "cannot be read"),
        (("list", "--source", "nobody"), "no such snapshot"),
        (("list", "--as-of", "yesterday"), "'yesterday' is no day"),
    ],
)
def test_the_tool_with_bad_data(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """65, or 66 where there is no such file, an error event, and a sentence."""
    code, events, said = run(capsys, *arguments, "--directory", str(tmp_path))

    assert code == (66 if words == "cannot be read" else 65)
    assert events[-1]["event"] == "error"
    assert words in said


def test_the_tool_used_wrongly(capsys: pytest.CaptureFixture[str]) -> None:
    """2, and where to look."""
    with pytest.raises(SystemExit) as ended:
        main(["refresh"])

    assert ended.value.code == 2
    assert "--file --skypilot is required (--help shows" in capsys.readouterr().err
