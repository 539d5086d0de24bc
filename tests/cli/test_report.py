"""``xmem-fast report`` as typed: output, streams and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import xmem_fast
from training_sample import training


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return training().write(tmp_path / "trace.json")


@pytest.mark.parametrize(
    "settings", [(), ("--alloc-conf", "expandable_segments:True"), ("--gpu", "rtx-3060")]
)
def test_what_is_written_agrees_with_the_simulator(
    settings: tuple[str, ...], trace: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.pickle"
    result = xmem_fast("report", trace, "--format", "memory_viz", "-o", file, *settings)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{file}: ")
    assert "memory_viz" in result.stderr
    replayed = xmem_fast("replay", file, "--torch", "2.13")
    assert replayed.exit_code == 0
    assert replayed.stdout.startswith("Agree: all ")


def test_a_run_that_does_not_fit_ends_out_of_memory(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.pickle"
    result = xmem_fast("report", trace, "-o", file, "--gpu", "rtx-3060", "--capacity", "160MiB", "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert next(iter(data)) == "schema_version"
    assert (data["path"], data["format"], data["fits"]) == (str(file), "memory_viz", False)
    replayed = xmem_fast("replay", file, "--json")
    assert replayed.exit_code == 0
    (device,) = json.loads(replayed.stdout)["devices"]
    assert (device["events"], device["peak_reserved_bytes"]) == (data["events"], data["peak_reserved_bytes"])


FORMATS = ("csv", "perfetto", "speedscope", "flamegraph", "tree", "terminal")


@pytest.mark.parametrize("chosen", FORMATS)
def test_text_goes_to_standard_output(chosen: str, trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "report"
    assert xmem_fast("report", trace, "--format", chosen, "-o", file).exit_code == 0
    for arguments in ((), ("-o", "-")):
        printed = xmem_fast("report", trace, "--format", chosen, *arguments)
        assert printed.exit_code == 0
        assert printed.stdout.strip()
        if chosen != "terminal":  # has timings
            assert printed.stdout_bytes == file.read_bytes()


@pytest.mark.parametrize(
    ("name", "chosen", "counted"),
    [
        ("run.csv", "csv", "rows"),
        ("run.parquet", "parquet", "rows"),
        ("run.pickle", "memory_viz", "events"),
        ("run.json", "perfetto", "events"),
        ("run.speedscope.json", "speedscope", "holders"),
        ("run.tree.json", "tree", "modules"),
        ("run.folded", "flamegraph", "stacks"),
        ("run.txt", "terminal", "bytes"),
    ],
)
def test_the_name_of_the_file_tells_the_format(
    name: str, chosen: str, counted: str, trace: Path, tmp_path: Path
) -> None:
    result = xmem_fast("report", trace, "-o", tmp_path / name, "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert (data["path"], data["format"], data["fits"]) == (str(tmp_path / name), chosen, None)
    assert data[counted] > 0
    assert (tmp_path / name).stat().st_size > 0


def test_a_page_is_written_for_its_ending(trace: Path, tmp_path: Path) -> None:
    for package in ("jinja2", "uplot", "tsdownsample"):
        pytest.importorskip(package, reason=f"{package} is not installed here")
    result = xmem_fast("report", trace, "-o", tmp_path / "run.html", "--json")
    assert (result.exit_code, json.loads(result.stdout)["format"]) == (0, "html")
    page = (tmp_path / "run.html").read_text()
    assert page.startswith("<!doctype html>")
    assert xmem_fast("report", trace, "--format", "html").stdout.startswith("<!doctype html>")


@pytest.fixture
def estimate(trace: Path, tmp_path: Path) -> Path:
    file = tmp_path / "estimate.json"
    assert xmem_fast("estimate", trace, "-o", file).exit_code == 0
    return file


@pytest.mark.parametrize("chosen", ["speedscope", "flamegraph", "terminal"])
def test_an_estimate_says_what_its_trace_says(chosen: str, estimate: Path, trace: Path) -> None:
    of_estimate = xmem_fast("report", estimate, "--format", chosen)
    of_trace = xmem_fast("report", trace, "--format", chosen)
    assert (of_estimate.exit_code, of_trace.exit_code) == (0, 0)
    if chosen == "flamegraph":
        assert of_estimate.stdout == of_trace.stdout
    assert of_estimate.stdout


def test_the_table_of_an_estimate_is_its_breakdown(estimate: Path, trace: Path) -> None:
    of_estimate = xmem_fast("report", estimate, "--format", "csv")
    of_trace = xmem_fast("report", trace, "--format", "csv", "--what", "breakdown")
    assert of_estimate.stdout == of_trace.stdout
    assert of_estimate.stdout.startswith("category,phase,")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--format", "perfetto"), "needs a trace"),
        (("--format", "memory_viz", "-o", "x.pickle"), "needs a trace"),
        (("--format", "csv", "--what", "blocks"), "needs a trace"),
        (("--format", "flamegraph", "--show-packages"), "needs a trace"),
        (("--format", "terminal", "--gpu", "rtx-3060"), "needs a trace"),
    ],
)
def test_what_an_estimate_does_not_hold(arguments: tuple[str, ...], says: str, estimate: Path) -> None:
    result = xmem_fast("report", estimate, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_a_damaged_estimate(estimate: Path) -> None:
    estimate.write_text(estimate.read_text()[:-20])
    result = xmem_fast("report", estimate)
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"{estimate}, byte " in result.stderr
    assert "this estimate is damaged" in result.stderr


def test_what_a_format_needs_is_named(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmem.reports.tables.parquet_table.find_spec", lambda _: None)
    result = xmem_fast("report", trace, "-o", tmp_path / "run.parquet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "pip install 'xmem-fast[parquet]'" in result.stderr


def test_a_report_that_fails_leaves_the_file_as_it_was(estimate: Path, tmp_path: Path) -> None:
    file = tmp_path / "before.csv"
    file.write_text("as it was")
    assert xmem_fast("report", estimate, "-o", file, "--what", "blocks").exit_code == 2
    assert file.read_text() == "as it was"
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--format", "memory_viz"), "-o"),
        (("--json",), "-o"),
        (("-o", "x.what"), "--format"),
        (("-o", "x.svg"), "--format"),
        (("-o", "x.folded", "--what", "blocks"), "csv or parquet"),
        (("-o", "x.pickle", "--format", "svg"), "svg"),
        (("-o", "/", "--format", "memory_viz"), "Is a directory"),
        (("-o", "x.pickle", "--alloc-conf", "no_such_key:1"), "no_such_key"),
    ],
)
def test_usage(
    arguments: tuple[str, ...], says: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = xmem_fast("report", trace, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_bad_input(tmp_path: Path) -> None:
    result = xmem_fast("report", tmp_path / "missing.json", "-o", tmp_path / "x.pickle")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "missing.json" in result.stderr
