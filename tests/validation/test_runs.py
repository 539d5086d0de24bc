"""Files of runs and of estimates: what is read, and what is said of what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_samples import HEADER, ROWS, RTX_3060, estimates_file, runs_file

from xmem.errors import ConfigError, TraceError
from xmem.validation.estimates import RowEstimate, first_of, read_estimates
from xmem.validation.runs import IDENTITY, read_runs


def test_runs_as_written(tmp_path: Path) -> None:
    first, second, third = read_runs(runs_file(tmp_path))
    assert first.where.endswith("runs.csv:2")
    assert first.identity == ("001-Anova", "CNN", "VGG16", "SGD", "200", RTX_3060, "null")
    assert (first.batch, first.zero_grad, first.peak_bytes, first.out_of_memory) == (
        200,
        0,
        4_000_000_000,
        False,
    )
    assert first.published_bytes == {"xMem": 4_100_000_000, "DNNMem": 3_000_000_000}
    assert (first.published_second_oom, first.published_seconds) == (False, 20.5)
    assert second.title == "gpt Adam 8, GeForce RTX 3060"
    assert (third.zero_grad, third.out_of_memory, third.published_second_oom) == (2, True, None)
    assert third.published_bytes == {"xMem": 9_950_000_000}  # -1: not supported
    assert third.title == "VGG16 Adam 900 zero_grad 2, GeForce RTX 3060"


def test_the_least_columns(tmp_path: Path) -> None:
    header = "family,model,optimizer,batch_size,gpu,gpu_total_bytes,nvml_peak_bytes,real_oom"
    (only,) = read_runs(runs_file(tmp_path, "CNN,VGG16,SGD,1,T4,10,5,false", header=header))
    assert only.published_bytes == {}
    assert only.identity == ("", "CNN", "VGG16", "SGD", "1", "T4", "")


@pytest.mark.parametrize(
    ("old", "new", "column", "expected"),
    [
        (",200,", ",many,", "batch_size", "positive whole number"),
        (",200,", ",0,", "batch_size", "positive whole number"),
        ("CNN", "RNN", "family", "CNN or Transformer"),
        ("VGG16", "", "model", "empty"),
        ("null", "9", "zero_grad_mode", "0 or 1 or 2"),
        ("4000000000,false", "4000000000,maybe", "real_oom", "true, false or empty"),
        ("4000000000,false", "4000000000,", "real_oom", "true or false"),
        ("3000000000", "inf", "dnnmem_estimate_bytes", "a number or empty"),
        ("20.5,3000000000", "20.5", "dnnmem_estimate_bytes", "in every row"),
    ],
)
def test_bad_cells_are_named(tmp_path: Path, old: str, new: str, column: str, expected: str) -> None:
    path = runs_file(tmp_path, ROWS[1], ROWS[0].replace(old, new, 1))
    with pytest.raises(TraceError) as caught:
        read_runs(path)
    assert str(caught.value).startswith(f"{path}: line 3, column {column} must be ")
    assert expected in str(caught.value)
    assert "correct or remove the line" in str(caught.value)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    header = HEADER.replace("nvml_peak_bytes", "peak").replace("gpu_total_bytes", "total")
    with pytest.raises(TraceError, match="no column gpu_total_bytes, nvml_peak_bytes"):
        read_runs(runs_file(tmp_path, header=header))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_runs(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="save it as CSV"):
        read_runs(tmp_path / "binary.csv")
    (tmp_path / "header.csv").write_text(HEADER + "\n")
    with pytest.raises(TraceError, match="no runs"):
        read_runs(tmp_path / "header.csv")


def test_estimates_as_csv_and_as_json(tmp_path: Path) -> None:
    path = estimates_file(
        tmp_path, 'phantom,4050000000,false,0.5,,,fine,"{""workspaces"": 12}"', "fitted,,,,,,not captured,"
    )
    first, second = read_estimates(path)
    assert (first.way, first.estimate_bytes, first.estimated_oom, first.seconds) == (
        "phantom",
        4_050_000_000,
        False,
        0.5,
    )
    assert (first.note, dict(first.policies)) == ("fine", {"workspaces": 12})
    assert (second.estimate_bytes, second.note) == (None, "not captured")
    rows = [
        {
            **dict(zip(IDENTITY, row.identity, strict=True)),
            "way": row.way,
            "estimate_bytes": row.estimate_bytes,
            "estimated_oom": row.estimated_oom,
            "seconds": row.seconds,
            "note": row.note,
            "policies": row.policies,
        }
        for row in (first, second)
    ]
    as_json = tmp_path / "estimates.json"
    as_json.write_text(json.dumps(rows))
    assert read_estimates(as_json) == (first, second)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("phantom,-5,false,,,,,", "column estimate_bytes"),
        ("phantom,5,perhaps,,,,,", "column estimated_oom"),
        (",5,false,,,,,", "column way must be filled in"),
        ("phantom,5,false,,,,,[1]", "column policies"),
    ],
)
def test_bad_estimates_are_named(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_estimates(estimates_file(tmp_path, row))


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), ("{}", "not a list"), ('[{"way": "cpu"}]', "no key set")]
)
def test_bad_json(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "estimates.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_estimates(path)


def test_the_first_way_with_an_estimate_counts() -> None:
    def estimate(run: str, way: str, size: int | None) -> RowEstimate:
        return RowEstimate((run,), way, size)

    chosen = first_of(
        ("phantom", "cpu", "fitted"),
        [
            estimate("a", "fitted", 3),
            estimate("a", "phantom", 1),
            estimate("b", "phantom", None),
            estimate("b", "fitted", 3),
            estimate("b", "static", 9),
            estimate("c", "fitted", None),
            estimate("c", "phantom", None),
        ],
    )
    assert [(row.identity[0], row.way, row.estimate_bytes) for row in chosen] == [
        ("a", "phantom", 1),
        ("b", "fitted", 3),
        ("c", "phantom", None),
    ]
