"""Tables as CSV and Parquet, read back by other readers, hold what the estimate says."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmem.errors import ConfigError
from xmem.estimation.analysis import Analysis
from xmem.reports.tables.columns import Column, TableName, pieces, table_of
from xmem.reports.tables.csv_table import write_csv
from xmem.reports.tables.parquet_table import write_parquet

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed here")
parquet = pytest.importorskip("pyarrow.parquet")

Rows = list[dict[str, Any]]


def from_parquet(analysis: Any, what: TableName) -> Rows:
    file = io.BytesIO()
    rows = write_parquet(table_of(analysis, what), file)
    table = parquet.read_table(file)
    assert table.num_rows == rows
    found: Rows = table.to_pylist()
    return found


def from_csv(analysis: Any, what: TableName) -> list[dict[str, str]]:
    file = io.BytesIO()
    rows = write_csv(table_of(analysis, what), file)
    found = list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))
    assert len(found) == rows
    return found


def as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


@pytest.mark.parametrize("what", list(TableName))
def test_csv_and_parquet_say_the_same(what: TableName, analysis: Analysis) -> None:
    typed = from_parquet(analysis, what)
    assert len(typed) > 1
    assert [{name: as_text(value) for name, value in row.items()} for row in typed] == from_csv(
        analysis, what
    )


def test_blocks_alive_at_the_peak_are_its_bytes(analysis: Analysis) -> None:
    peak = analysis.estimate.peak.request_index
    never = len(analysis.stages.requests)
    blocks = from_parquet(analysis, TableName.BLOCKS)
    alive = [
        block
        for block in blocks
        if block["alloc_request"]
        <= peak
        < (never if block["free_request"] is None else block["free_request"])
    ]
    assert sum(block["held_bytes"] for block in alive) == analysis.estimate.peak_allocated_bytes
    by_module: dict[str, int] = {}
    for block in alive:
        module = block["module"] or "(outside of modules)"
        by_module[module] = by_module.get(module, 0) + block["held_bytes"]
    assert by_module == dict(analysis.estimate.breakdown.module)


def test_blocks_of_a_segment_lie_apart_while_both_live(analysis: Analysis) -> None:
    never = len(analysis.stages.requests)
    blocks = from_parquet(analysis, TableName.BLOCKS)
    for number in {block["segment"] for block in blocks}:
        of_it = [block for block in blocks if block["segment"] == number]
        for at, one in enumerate(of_it[:50]):
            for other in of_it[:at]:
                together = one["alloc_request"] < (other["free_request"] or never) and other[
                    "alloc_request"
                ] < (one["free_request"] or never)
                apart = (
                    one["address"] + one["held_bytes"] <= other["address"]
                    or other["address"] + other["held_bytes"] <= one["address"]
                )
                assert apart or not together


def test_a_block_is_known_by_its_tensor_and_holders(predicted: Analysis) -> None:
    (weight, *_) = from_parquet(predicted, TableName.BLOCKS)
    assert weight["requested_bytes"] == 4 << 20
    assert (weight["category"], weight["module"], weight["tensor"]) == (
        "parameter",
        "Net.fc",
        "Net.fc.weight",
    )
    assert (weight["free_time_ns"], weight["free_request"], weight["iteration"]) == (None, None, None)
    assert weight["persistent"] is True
    activation = next(
        block for block in from_parquet(predicted, TableName.BLOCKS) if block["category"] == "activation"
    )
    assert (activation["operator"], activation["source_line"]) == ("aten::linear", "train.py:7")
    assert (activation["iteration"], activation["phase"]) == (0, "forward")


def test_lines_of_packages_are_shown_on_request(predicted: Analysis, unfolded: Analysis) -> None:
    folded = from_parquet(predicted, TableName.BLOCKS)[-1]
    shown = from_parquet(unfolded, TableName.BLOCKS)[-1]
    assert (folded["source_line"], shown["source_line"]) == ("train.py:7", "layers/linear.py:3")
    assert shown["innermost_operator"] == "aten::empty"


def test_the_timeline_reaches_the_peaks(analysis: Analysis) -> None:
    rows = from_parquet(analysis, TableName.TIMELINE)
    assert max(row["allocated_bytes"] for row in rows) == analysis.estimate.peak_allocated_bytes
    assert (
        max(row["reserved_bytes"] for row in rows)
        == analysis.estimate.peak_reserved_bytes - analysis.verdict.missed_bytes
    )
    assert max(row["requested_bytes"] for row in rows) == analysis.estimate.peak_requested_bytes
    assert [row["request"] for row in rows] == list(range(len(rows)))
    assert rows[0]["kind"] == "alloc"


def test_the_breakdown_is_that_of_the_estimate(analysis: Analysis) -> None:
    rows = from_parquet(analysis, TableName.BREAKDOWN)
    total = sum(row["rounded_bytes"] + row["slack_bytes"] for row in rows)
    assert total == analysis.estimate.peak_allocated_bytes
    assert from_parquet(analysis.estimate, TableName.BREAKDOWN) == rows


def test_an_estimate_alone_has_its_curve_and_no_blocks(analysis: Analysis) -> None:
    rows = from_parquet(analysis.estimate, TableName.TIMELINE)
    assert max(row["allocated_bytes"] for row in rows) == analysis.estimate.peak_allocated_bytes
    with pytest.raises(ConfigError, match="the trace"):
        table_of(analysis.estimate, TableName.BLOCKS)


def test_a_large_table_is_written_in_row_groups(tmp_path: Path) -> None:
    count = 300_000
    names = ["one", "two"]
    table = [
        Column("size_bytes", np.arange(count)),
        Column("name", (np.arange(count) % 3 - 1).astype(np.int32), names),
    ]
    with (tmp_path / "t.parquet").open("wb") as file:
        assert write_parquet(table, file) == count
    written = parquet.ParquetFile(tmp_path / "t.parquet")
    assert written.metadata.num_row_groups == 3
    column = written.metadata.row_group(0).column(1)
    assert column.compression == "ZSTD"
    assert column.has_dictionary_page
    rows = written.read()
    assert rows["size_bytes"].to_numpy().sum() == count * (count - 1) // 2
    assert rows["name"].slice(0, 3).to_pylist() == [None, "one", "two"]


def test_a_table_without_rows_keeps_its_columns() -> None:
    empty = [Column("size_bytes", np.zeros(0, np.int64)), Column("name", np.zeros(0, np.int32), ["one"])]
    assert len(list(pieces(empty))) == 1
    file = io.BytesIO()
    assert write_csv(empty, file) == 0
    assert file.getvalue() == b"size_bytes,name\r\n"
    file = io.BytesIO()
    assert write_parquet(empty, file) == 0
    assert parquet.read_table(file).column_names == ["size_bytes", "name"]


def test_fields_with_separators_are_quoted() -> None:
    odd = ['a,"b"', "two\nlines"]
    file = io.BytesIO()
    write_csv([Column("name", np.array([0, 1], np.int32), odd)], file)
    assert [row["name"] for row in csv.DictReader(io.StringIO(file.getvalue().decode(), newline=""))] == odd
