"""Foreign tables: every row on its own, refused with number and reason, imported once."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.jobs import MAX_DURATION_S, CostKind, JobRecord, JobState
from services._jobs.record_files import read_job_file
from services._runtime.command.errors import UsageError
from services.collector.tool import BadDataError
from services.collector.transfer import import_jobs
from services.collector.transfer.importing import Imported, MappingError, TableError, import_table, read_mapping
from services.collector.write_ahead_log import Journal, read_journal
from tests.support.job_records import job_record, run_profile

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
MAPPING: dict[str, Any] = {
    "dataset": "lab",
    "ignore": [""],
    "empty": ["", "NA"],
    "fields": {
        "task.task": "app",
        "task.layers": {"column": "layers", "split": ";"},
        "configuration.instance_type": {"template": "{family}.{size}"},
        "configuration.workers": "nodes",
        "configuration.batch_size": {"column": "batch", "scale": 2},
        "duration_s": {"column": "minutes", "unit": "minutes"},
        "cost_usd": {"column": "cents", "unit": "cents"},
        "state": {"column": "status", "values": {"ok": "succeeded"}, "otherwise": "failed"},
        "reason": {"column": "status", "values": {"ok": ""}},
    },
    "attributes": {
        "configuration": {"sync": "sync", "servers": {"column": "ps", "number": True}},
        "task": {"source": {"template": "{file}"}},
    },
    "instances": {"m.large": {"vcpu": 2, "memory_gb": 8}},
    "price": {"as_of": "2026-11-01", "source": "lab", "from_cost": True},
}
HEADER = ",app,layers,family,size,nodes,batch,minutes,cents,status,sync,ps\n"
GOOD = '0,mnist,Conv2d;ReLU,m,large,3,16,10,50,ok,"ring, async",1\n'

Import = Callable[..., Imported]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Import a text as a CSV file."""

    def work(text: str, **changes: Any) -> Imported:
        path, mapping = tmp_path / "table.csv", tmp_path / "mapping.yaml"
        path.write_text(text, encoding="utf-8")
        mapping.write_text(yaml.safe_dump(MAPPING | changes))
        return import_table(path, read_mapping(mapping))

    return work


def test_a_row_becomes_a_record(imported: Import) -> None:
    (record,) = imported(HEADER + GOOD).records

    assert (record.dataset, record.task.task, record.task.layers) == ("lab", "mnist", ("Conv2d", "ReLU"))
    place = record.configuration
    assert (place.instance_type, place.workers, place.batch_size, place.vcpu) == ("m.large", 3, 32, 2)
    assert place.attributes == {"sync": "ring, async", "servers": 1.0}
    assert record.task.attributes == {"source": "table"}
    assert (record.state, record.reason, record.duration_s) == (JobState.SUCCEEDED, "", 600)
    assert (record.cost_usd, record.cost_kind) == (0.5, CostKind.DERIVED)
    assert record.price is not None
    # 0.50 USD for 3 machines in a sixth of an hour: 1 USD an hour for each
    assert record.price.usd_per_hour == pytest.approx(1.0)
    assert record.price.as_of.isoformat() == "2026-11-01"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,mnist,,m,large,3,16,10,-5,ok,,", "cost_usd: Input should be greater than or equal to 0 (it is '-0.05')"),
        ("1,mnist,,m,large,3,16,nan,5,ok,,", "duration_s: 'nan' is not finite"),
        ("1,mnist,,m,large,3,16,10,inf,ok,,", "cost_usd: 'inf' is not finite"),
        ("1,mnist,,m,large,3,16,0,5,ok,,", "duration_s: Input should be greater than 0 (it is '0.0')"),
        ("1,mnist,,m,large,3,16,ten,5,ok,,", "duration_s: 'ten' is no number"),
        ("1,mnist,,m,large,3,16,1e-320,5,ok,,", "price.usd_per_hour: inf is no price"),
        ("1,mnist,,m,huge,3,16,10,5,ok,,", "configuration.instance_type: 'm.huge' is none of the mapping's instances"),
        ("1,mnist,,m,large,2.5,16,10,5,ok,,", "configuration.workers: '2.5' is no whole number"),
        ("1,mnist,,m,large,0,16,10,5,ok,,", "configuration.workers: Input should be greater than or equal to 1"),
        ("1,NA,,m,large,3,16,10,5,ok,,", "task.task: Field required"),
        ("1,mnist,,m,large,,16,10,5,ok,,", "configuration.workers: Field required"),
        ("1,mnist,,m,large,3,16,10,5,,,", "state: Field required"),
        ("1,mnist,,m,large,3,16,10,5,ok,,x", "configuration.attributes.servers: 'x' is no number"),
        ("1,mnist,,m,large,3,16,10,5,ok", "Expected Number of Columns: 12 Found: 10"),
        ("1,mnist,,m,large,3,16,10,5,ok,,,x,y", "Expected Number of Columns: 12 Found: 1"),
        ("1,mn\udcffist,,m,large,3,16,10,5,ok,,", ""),
    ],
)
def test_what_is_wrong_rejects_its_row_and_no_other(tmp_path: Path, imported: Import, row: str, reason: str) -> None:
    if not reason:  # bytes that are no UTF-8
        path, mapping = tmp_path / "bytes.csv", tmp_path / "mapping.yaml"
        path.write_bytes((HEADER + GOOD + row + "\n").encode("utf-8", "surrogateescape"))
        mapping.write_text(yaml.safe_dump(MAPPING))
        with pytest.raises(TableError, match=r"bytes\.csv cannot be read"):
            import_table(path, read_mapping(mapping))
        return
    found = imported(HEADER + GOOD + row + "\n" + GOOD.replace("0,mnist", "2,other"))

    assert [record.task.task for record in found.records] == ["mnist", "other"]
    ((number, text),) = found.rejected
    assert number == 3, "the header is line 1"
    assert reason in text


def test_a_name_that_no_message_could_carry_rejects_its_row_and_no_other(imported: Import) -> None:
    found = imported(HEADER + GOOD.replace("mnist", "ü" * 150) + GOOD, job={"template": "run {app}"})

    assert [record.job for record in found.records] == ["run mnist"]
    ((number, text),) = found.rejected
    assert number == 2
    assert "can never be published" in text


def test_line_numbers_hold_after_lines_that_are_no_rows(imported: Import) -> None:
    bad = "1,mnist\n"
    found = imported(HEADER + bad + GOOD + bad + GOOD.replace("m,large", "x,large"))
    assert [number for number, _ in found.rejected] == [2, 4, 5]


def test_the_same_row_is_the_same_job_wherever_it_stands_and_however_it_is_mapped(imported: Import) -> None:
    other = GOOD.replace("mnist", "other")
    first = {record.job for record in imported(HEADER + GOOD + other).records}
    moved = {record.job for record in imported(HEADER + "5" + other[1:] + "7" + GOOD[1:]).records}
    richer = {record.job for record in imported(HEADER + GOOD + other, price=None, instances={"m.large": {}}).records}

    assert first == moved == richer
    assert len(first) == 2


def test_rows_that_say_the_same_are_one(imported: Import) -> None:
    found = imported(HEADER + GOOD + GOOD.replace("0,", "1,", 1))
    assert (len(found.records), found.duplicates) == (1, [3])


def test_two_jobs_of_one_name_are_not_taken_for_the_same(imported: Import) -> None:
    """A mapping whose names are not unique loses no row in silence."""
    found = imported(HEADER + GOOD + GOOD.replace(",10,50,", ",11,50,") + GOOD, job={"template": "{app}"})
    assert (len(found.records), found.duplicates) == (1, [4])
    assert found.rejected == [(3, "job: mnist is the name of row 2 already, with other values")]


def test_repeats_are_numbered(imported: Import) -> None:
    text = HEADER + "".join(GOOD.replace(",10,50,", f",{minutes},50,") for minutes in (10, 11, 12))
    assert [record.repeat for record in imported(text).records] == [0, 1, 2]


def test_thresholds_and_units(imported: Import) -> None:
    state = {"column": "minutes", "at_least": {"limit": 10, "then": "timed_out", "otherwise": "succeeded"}}
    fields = MAPPING["fields"] | {"state": state}
    text = HEADER + GOOD + GOOD.replace(",10,50,", ",9.99,50,")
    assert [record.state for record in imported(text, fields=fields).records] == ["timed_out", "succeeded"]


@pytest.mark.parametrize(("unit", "seconds"), [("h", 36_000.0), ("hours", 36_000.0), ("min", 600.0), ("s", 10.0)])
def test_units_of_time(imported: Import, unit: str, seconds: float) -> None:
    """Ten of each."""
    fields = MAPPING["fields"] | {"duration_s": {"column": "minutes", "unit": unit}}
    assert imported(HEADER + GOOD, fields=fields).records[0].duration_s == seconds


def test_columns_without_use_are_told(imported: Import) -> None:
    found = imported(HEADER.replace("\n", ",row_id\n") + GOOD.replace("\n", ",17\n"))
    assert found.unused_columns == ["row_id"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("\n", "has no header: its first line must name the columns"),
        ("a,b,a\n1,2,3\n", "twice"),
        (HEADER.replace("nodes", "machines") + GOOD, "has no column nodes; it has , app, layers"),
    ],
)
def test_a_file_that_does_not_fit_is_said(imported: Import, text: str, complaint: str) -> None:
    with pytest.raises((TableError, MappingError), match=complaint):
        imported(text)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"fields": {"task.task": "app"}}, "not mapped: configuration.instance_type, configuration.workers, state"),
        ({"fields": MAPPING["fields"] | {"task.name": "app"}}, "no such field: task.name; there are state"),
        ({"instances": {}}, "name the instances that there are, or write any_instance: true"),
        ({"fields": MAPPING["fields"] | {"cost_usd": {}}}, "one of column, template and constant"),
        ({"fields": MAPPING["fields"] | {"cost_usd": {"column": "c", "unit": "days"}}}, "unknown unit 'days'"),
        ({"columns": 3}, "Extra inputs"),
        ({"price": {"source": "lab"}}, "price.as_of: Field required"),
    ],
)
def test_a_mapping_that_cannot_be_is_said(imported: Import, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(MappingError) as raised:
        imported(HEADER + GOOD, **changes)
    assert complaint in str(raised.value)


def test_yaml_is_read_as_it_stands(tmp_path: Path) -> None:
    """No Norway problem, and no key twice."""
    path = tmp_path / "mapping.yaml"
    text = yaml.safe_dump(MAPPING)
    path.write_text(text.replace("ok: succeeded", "no: succeeded"))
    assert read_mapping(path).fields["state"].values == {"no": "succeeded"}
    path.write_text(text + "dataset: again\n")
    with pytest.raises(MappingError, match="'dataset' stands here a second time"):
        read_mapping(path)
    path.write_text("a: [1")
    with pytest.raises(MappingError, match="not valid YAML"):
        read_mapping(path)
    with pytest.raises(MappingError, match="No such file"):
        read_mapping(tmp_path / "none.yaml")


def test_parquet_is_read_with_its_row_numbers(tmp_path: Path) -> None:
    path, mapping = tmp_path / "table [1].parquet", tmp_path / "mapping.yaml"
    mapping.write_text(
        yaml.safe_dump({**MAPPING, "fields": {**MAPPING["fields"], "duration_s": "seconds"}, "price": None})
    )
    with duckdb.connect() as connection:
        rows = ", ".join(
            f"('mnist', NULL, 'm', 'large', {workers}, 16, {seconds}, 50.0, 'ok', NULL, 1)"
            for workers, seconds in ((1, "1.5"), (2, "'nan'::DOUBLE"), (3, "0.1"))
        )
        connection.execute(
            f"CREATE TABLE t AS FROM (VALUES {rows}) "
            "t(app, layers, family, size, nodes, batch, seconds, cents, status, sync, ps)"
        )
        connection.table("t").write_parquet(str(path))
    found = import_table(path, read_mapping(mapping))
    assert [record.duration_s for record in found.records] == [1.5, 0.1]
    assert found.rejected == [(2, "duration_s: 'nan' is not finite")]


# -- encodings, numbers, times ---------------------------------------------------------------------------------------


def test_line_numbers_hold_after_a_line_break_in_a_cell(imported: Import) -> None:
    """The line on which the row begins, as an editor shows it."""
    broken = GOOD.replace("ring, async", "ring\nasync")
    bad = GOOD.replace("0,mnist", "1,mnist").replace(",10,50,", ",ten,50,")
    found = imported(HEADER + broken + bad + "1,mnist\n")

    assert found.records[0].configuration.attributes["sync"] == "ring\nasync"
    assert [number for number, _ in found.rejected] == [4, 5]


def test_a_line_break_in_a_header_is_part_of_its_name(imported: Import) -> None:
    fields = MAPPING["fields"] | {"configuration.workers": "nodes\n(final)"}
    found = imported(HEADER.replace("nodes", '"nodes\n(final)"') + GOOD + "1\n", fields=fields)

    assert found.records[0].configuration.workers == 3
    assert [number for number, _ in found.rejected] == [4]


def test_a_quotation_mark_that_is_never_closed_is_named_with_its_line(imported: Import) -> None:
    found = imported(HEADER + GOOD + '1,"mnist\n' + GOOD.replace('"ring, async"', "ring"))

    assert len(found.records) == 1
    assert found.rejected == [(3, "a quotation mark is opened here and never closed")]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_says_the_encoding(tmp_path: Path, encoding: str) -> None:
    assert _imported_bytes(tmp_path, (HEADER + GOOD.replace("mnist", "müst")).encode(encoding)) == ["müst"]


def test_another_encoding_is_the_mappings(tmp_path: Path) -> None:
    content = (HEADER + GOOD.replace("mnist", "müst")).encode("latin-1")

    with pytest.raises(TableError, match=r"\(line 2\) is no utf-8: write .* encoding: latin-1.*iconv"):
        _imported_bytes(tmp_path, content)
    assert _imported_bytes(tmp_path, content, encoding="latin-1") == ["müst"]
    with pytest.raises(TableError, match="is it UTF-16"):
        _imported_bytes(tmp_path, HEADER.encode("utf-16-le"))
    with pytest.raises(MappingError, match="'klingon' is no encoding"):
        _imported_bytes(tmp_path, content, encoding="klingon")


def _imported_bytes(tmp_path: Path, content: bytes, **changes: Any) -> list[str]:
    path, mapping = tmp_path / "bytes.csv", tmp_path / "mapping.yaml"
    path.write_bytes(content)
    mapping.write_text(yaml.safe_dump(MAPPING | changes))
    return [record.task.task for record in import_table(path, read_mapping(mapping)).records]


def test_decimal_commas(imported: Import) -> None:
    """Read where the mapping says so; else the row's error names the key."""
    text = (HEADER + GOOD.replace('"ring, async"', "ring")).replace(",", ";").replace("Conv2d;ReLU", "ReLU")
    text = text.replace(";10;", ";10,5;")
    plain = imported(text, separator=";")
    read = imported(text, separator=";", decimal=",")
    wrong = imported(text.replace("10,5", "1.234,5"), separator=";", decimal=",")

    assert plain.rejected == [
        (2, "duration_s: '10,5' is no number (with a decimal comma? write `decimal: \",\"` into the mapping)")
    ]
    assert read.records[0].duration_s == 630.0
    assert "'1.234,5' is no number with a decimal comma" in wrong.rejected[0][1]


@pytest.mark.parametrize("text", ["1_000", "\uff11\uff12", "0x10", "1 000"])
def test_only_plain_digits_are_a_number(imported: Import, text: str) -> None:
    found = imported(HEADER + GOOD.replace(",3,16,", f",{text},16,"))
    assert found.rejected == [(2, f"configuration.workers: {text!r} is no number")]


def test_a_cell_with_a_nul_character_is_refused(imported: Import) -> None:
    found = imported(HEADER + GOOD.replace("mnist", "mn\0ist"))
    assert found.rejected == [(2, "column app: holds a NUL character")]


SECONDS = MAPPING["fields"] | {"duration_s": "minutes"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("05:10", 310.0),
        ("05:10.250", 310.25),
        ("01:00:00", 3_600.0),
        ("00:00:07", 7.0),
        ("1-02:03:04", 93_784.0),
        ("2-00:00:00.500", 172_800.5),
        ("100:00:00", 360_000.0),
        ("3600", 3_600.0),
    ],
)
def test_times_as_slurm_prints_them(imported: Import, text: str, seconds: float) -> None:
    """Elapsed beside ElapsedRaw."""
    assert imported(HEADER + GOOD.replace(",10,", f",{text},"), fields=SECONDS).records[0].duration_s == seconds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("UNLIMITED", "duration_s: UNLIMITED is Slurm's word for no time: list it under `empty:`, or map ElapsedRaw"),
        ("Partition_Limit", "Partition_Limit is Slurm's word for no time"),
        ("INVALID", "INVALID is Slurm's word for no time"),
        ("1:2:3", "such are read as MM:SS, HH:MM:SS or D-HH:MM:SS"),
        ("90:00", "is no time of day and minutes"),
        ("1-30:00:00", "is no time of day and minutes"),
        ("00:00:00", "duration_s: Input should be greater than 0"),
    ],
)
def test_what_is_no_time_of_slurm(imported: Import, text: str, reason: str) -> None:
    found = imported(HEADER + GOOD.replace(",10,", f",{text},"), fields=SECONDS)
    assert reason in found.rejected[0][1]


def test_a_time_of_slurm_has_no_unit(imported: Import) -> None:
    """The mapping of these tests says minutes."""
    assert "has no `unit:`" in imported(HEADER + GOOD.replace(",10,", ",00:10:00,")).rejected[0][1]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            "1e308",
            "duration_s: 1e+308 s is more than ten years (the mapping says no `unit:`, so it is read as seconds: ",
        ),
        ("12345678901234567890", "is it in nanoseconds, `unit: ns`"),
        ("3.2e8", "duration_s: 3.2e+08 s is more than ten years"),
    ],
)
def test_times_beyond_ten_years_are_refused_with_the_likely_unit(imported: Import, row: str, reason: str) -> None:
    found = imported(HEADER + GOOD.replace(",10,", f",{row},") + GOOD, fields=SECONDS, price=None)

    assert [record.duration_s for record in found.records] == [10.0]
    assert reason in found.rejected[0][1]


def test_costs_beyond_a_billion_are_refused(imported: Import) -> None:
    found = imported(HEADER + GOOD.replace(",10,50,", ",10,1e300,"), price=None)
    assert found.rejected == [(2, "cost_usd: 1e+298 dollars is more than a billion")]


def test_nanoseconds_are_a_unit(imported: Import) -> None:
    fields = MAPPING["fields"] | {"duration_s": {"column": "minutes", "unit": "ns"}}
    assert imported(HEADER + GOOD.replace(",10,", ",2500000000,"), fields=fields).records[0].duration_s == 2.5


def test_a_price_of_zero_is_no_price(imported: Import) -> None:
    """From a cost of 0, or as it stands there; both are counted."""
    stated = MAPPING["price"] | {"from_cost": False, "usd_per_hour": {"column": "ps", "unit": "usd"}}
    free = imported(HEADER + GOOD.replace(",10,50,", ",10,0,"))
    zero = imported(HEADER + GOOD.replace(",1\n", ",0.00\n"), price=stated)

    assert [free.records[0].price, zero.records[0].price] == [None, None]
    assert (free.without_price, zero.without_price) == (1, 1)
    assert free.records[0].cost_usd == 0


@given(st.binary(max_size=300), st.sampled_from(["", "utf-16", "latin-1"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_read_or_refused_with_a_reason(tmp_path: Path, content: bytes, encoding: str) -> None:
    path, mapping = tmp_path / "any.csv", tmp_path / "mapping.yaml"
    mapping.write_text(yaml.safe_dump(MAPPING | {"encoding": encoding}))
    path.write_bytes(content)
    for whole in (content, HEADER.encode(encoding or "utf-8") + content):
        path.write_bytes(whole)
        with suppress(TableError, MappingError):
            found = import_table(path, read_mapping(mapping))
            assert all(number > 1 and reason for number, reason in found.rejected)


@given(st.text(max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_duration_is_within_ten_years_or_refused(imported: Import, text: str) -> None:
    cell = '"' + text.replace('"', '""') + '"'
    found = imported(HEADER + GOOD.replace(",10,", f",{cell},"), fields=SECONDS, price=None)
    assert len(found.records) + len(found.rejected) == 1
    assert all(one.duration_s is None or 0 < one.duration_s <= MAX_DURATION_S for one in found.records)


# -- accelerators ------------------------------------------------------------------------------------------------------


def test_accelerators_are_read_under_one_name(imported: Import) -> None:
    """Their memory is the table's where the file has none."""
    fields = MAPPING["fields"] | {"configuration.accelerator": "sync", "configuration.accelerators": "ps"}
    text = (
        HEADER + GOOD.replace('"ring, async",1', "Tesla V100-SXM2-16GB,4") + GOOD.replace('"ring, async",1', "MI300X,8")
    )
    first, second = (one.configuration for one in imported(text, fields=fields).records)

    assert (first.accelerator, first.accelerators, first.accelerator_memory_gb) == ("V100", 4, 16)
    assert (second.accelerator, second.accelerators, second.accelerator_memory_gb) == ("MI300X", 8, 0)


def test_instances_may_have_accelerators(imported: Import) -> None:
    place = imported(HEADER + GOOD, instances={"m.large": {"vcpu": 2, "accelerator": "k80"}}).records[0].configuration
    assert (place.accelerator, place.accelerators, place.accelerator_memory_gb) == ("K80", 1, 12)


def test_the_pages_mapping_reads_what_sacct_prints(tmp_path: Path) -> None:
    """docs/advisor.md, word for word; what stands under `empty` is no value."""
    page = (EXAMPLES.parent / "advisor.md").read_text(encoding="utf-8")
    table, mapping = tmp_path / "sacct.csv", tmp_path / "mapping.yaml"
    mapping.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    header = "JobName;Partition;NNodes;Gpu;GpusPerNode;Elapsed;State\n"
    rows = "übung;gpu;2;Tesla V100-SXM2-16GB;4;1-02:03:04;COMPLETED\nother;gpu;1;;;UNLIMITED;RUNNING\n"
    table.write_bytes((header + rows).encode("latin-1"))

    found = import_table(table, read_mapping(mapping))

    first, second = found.records
    assert (first.task.task, first.duration_s, first.state) == ("übung", 93_784.0, JobState.SUCCEEDED)
    assert (first.configuration.accelerator, first.configuration.accelerators) == ("V100", 4)
    assert (second.duration_s, second.configuration.accelerators) == (None, 0)


@pytest.mark.parametrize("name", ["multicloud_ibm.yaml", "trimtuner.yaml"])
def test_the_examples_are_mappings(name: str) -> None:
    assert read_mapping(EXAMPLES / name).instances


# -- the tool --------------------------------------------------------------------------------------------------


def _events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def _files(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(MAPPING))
    return ["import", str(tmp_path / "t.csv"), "--mapping", str(tmp_path / "m.yaml"), "--out", str(tmp_path / "out")]


def test_the_tool_keeps_what_is_good_and_says_what_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*_files(tmp_path, HEADER + GOOD + GOOD.replace("mnist", "")), "--no-bus"]
    assert import_jobs.main(command) == 65
    events = _events(capsys)
    assert [event["event"] for event in events] == ["error", "progress", "result"]
    assert events[0] == {"event": "error", "row": 3, "message": "task.task: Field required"}
    assert (events[-1]["new"], events[-1]["rejected"], events[-1]["unpublished"]) == (1, 1, 1)

    assert import_jobs.main(command) == 65
    assert _events(capsys)[-1]["new"] == 0
    assert len(list(read_journal(tmp_path / "out"))) == 1


def test_a_dry_run_keeps_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_jobs.main([*_files(tmp_path, HEADER + GOOD), "--dry-run"]) == 0
    assert _events(capsys)[-1]["read"] == 1
    assert not (tmp_path / "out").exists()


def test_our_own_form_goes_out_and_in_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records: list[JobRecord] = [job_record(1, local_run="run-1"), job_record(2, dataset="other")]
    with Journal(tmp_path / "a") as journal:
        journal.append_all([*records, run_profile(1), run_profile(2)])
    whole, part = tmp_path / "whole.parquet", tmp_path / "part.parquet"
    assert import_jobs.main(["export", str(whole), "--journal", str(tmp_path / "a")]) == 0
    assert import_jobs.main(["export", str(part), "--journal", str(tmp_path / "a"), "--dataset", "test"]) == 0
    assert import_jobs.main(["import", str(whole), "--out", str(tmp_path / "b"), "--no-bus"]) == 0

    found = {str(record) for record in read_journal(tmp_path / "b")}
    assert found == {str(record) for record in [*records, run_profile(1), run_profile(2)]}
    content = read_job_file(part)
    assert (content.records, content.profiles) == ((records[0],), (run_profile(1),))
    assert _events(capsys)[-1]["new"] == 4


def test_csv_is_for_spreadsheets(tmp_path: Path) -> None:
    with Journal(tmp_path / "a") as journal:
        journal.append_all([job_record(1), job_record(2, price=None)])
    path = tmp_path / "jobs.csv"
    assert import_jobs.main(["export", str(path), "--journal", str(tmp_path / "a")]) == 0
    with duckdb.connect() as connection:
        rows = connection.read_csv(str(path)).select('job, "task.layers", "price.usd_per_hour", duration_s').fetchall()
        attributes = connection.read_csv(str(path)).select('"task.attributes"').fetchall()
    assert rows == [("job-1", "Conv2d;ReLU;Linear", 0.2185, 101.0), ("job-2", "Conv2d;ReLU;Linear", None, 102.0)]
    assert [json.loads(text) for (text,) in attributes] == [{"sync": "ring", "x": 0.5}] * 2


def test_what_is_missing_on_the_command_line_is_said(tmp_path: Path) -> None:
    foreign = tmp_path / "t.csv"
    foreign.write_text(HEADER + GOOD)
    with pytest.raises(UsageError, match="--mapping has to say"):
        import_jobs.main(["import", str(foreign)])
    journal = _one(tmp_path)
    with pytest.raises(BadDataError, match=r"has to end in \.parquet or \.csv"):
        import_jobs.main(["export", str(tmp_path / "x.txt"), "--journal", str(journal)])
    with pytest.raises(BadDataError, match=r"nothing of a dataset 'nope' is known \(there are: test\)"):
        import_jobs.main(["export", str(tmp_path / "x.csv"), "--journal", str(journal), "--dataset", "nope"])
    with pytest.raises(SystemExit) as ended:
        import_jobs.main(["import"])
    assert ended.value.code == 2


def _one(tmp_path: Path) -> Path:
    with Journal(tmp_path / "one") as journal:
        journal.append(job_record(1))
    return tmp_path / "one"
