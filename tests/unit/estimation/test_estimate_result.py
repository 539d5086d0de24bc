"""The JSON contract of an estimate."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from estimate_samples import DOES_NOT_FIT, FITS, NO_GPU
from xmem.errors import TraceError
from xmem.estimation.estimate import SCHEMA_VERSION, Curve, Estimate, Interval, Measured, RankPeak
from xmem.text.units import format_bytes


def test_json_keys_in_order() -> None:
    assert list(FITS.to_json()) == [
        "schema_version",
        "peak_reserved_bytes",
        "peak_allocated_bytes",
        "peak_requested_bytes",
        "context_bytes",
        "device_peak_bytes",
        "interval",
        "verdict",
        "peak",
        "breakdown",
        "target",
        "policies",
        "assumptions",
        "simulation",
        "measured",
        "scaling",
        "what_if",
        "diagnostics",
        "trace",
        "timings_s",
        "convolution_workspaces",
        "curve",
        "card",
        "largest_blocks",
        "occupancy",
    ]


@pytest.mark.parametrize(
    ("key", "inner"),
    [
        ("verdict", "gpu capacity_bytes fits margin_bytes"),
        ("peak", "iteration phase operator module source_line time_ns request_index requested_bytes"),
        ("breakdown", "category category_peaks module operator source_line paths"),
        ("target", "gpu capacity_bytes compute_capability context_bytes torch_version alloc_conf"),
        ("simulation", "segments num_alloc_retries num_ooms fragmentation_bytes bounds oom"),
        ("trace", "path bytes events iterations source command"),
    ],
)
def test_json_inner_keys(key: str, inner: str) -> None:
    assert list(FITS.to_json()[key]) == inner.split()


@pytest.mark.parametrize("estimate", [FITS, DOES_NOT_FIT])
def test_the_contract_is_what_dataclasses_make_of_it(estimate: Estimate) -> None:
    assert estimate.to_json() == {"schema_version": SCHEMA_VERSION, **asdict(estimate)}


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        (
            DOES_NOT_FIT.to_json()["policies"][0],
            "name blocks_changed bytes_changed description bytes_at_peak package applied",
        ),
        (DOES_NOT_FIT.to_json()["diagnostics"][0], "kind severity count first_byte_offset message"),
        (
            DOES_NOT_FIT.to_json()["simulation"]["oom"],
            "request_index requested_bytes device_free_bytes operator module source_line iteration phase",
        ),
    ],
)
def test_json_keys_of_rows(row: dict[str, object], keys: str) -> None:
    assert list(row) == keys.split()


def test_json_values() -> None:
    data = json.loads(json.dumps(FITS.to_json()))
    assert data["schema_version"] == 1
    assert data["device_peak_bytes"] == 3514 * 1024**2
    assert data["verdict"]["fits"] is True
    assert data["simulation"]["oom"] is None
    assert data["trace"]["command"] == ["python", "examples/train_gpt2.py"]
    assert sum(data["breakdown"]["category"].values()) == data["peak_allocated_bytes"]


def test_no_gpu_no_verdict() -> None:
    assert NO_GPU.fits is None
    assert NO_GPU.to_json()["verdict"] is None
    assert FITS.fits is True
    assert DOES_NOT_FIT.fits is False


@pytest.mark.parametrize("estimate", [FITS, DOES_NOT_FIT, NO_GPU])
def test_reads_back_what_it_wrote(estimate: Estimate) -> None:
    assert Estimate.from_json(json.loads(json.dumps(estimate.to_json()))) == estimate


@pytest.mark.parametrize("data", [{}, {"traceEvents": []}, FITS.to_json() | {"schema_version": 2}])
def test_refuses_what_is_no_estimate(data: dict[str, object]) -> None:
    with pytest.raises(TraceError, match="not an estimate of schema version 1; write it with"):
        Estimate.from_json(data)


def test_refuses_a_damaged_estimate() -> None:
    data = FITS.to_json()
    del data["peak"]["phase"]
    with pytest.raises(TraceError, match=r"this estimate is damaged .*phase"):
        Estimate.from_json(data)


def test_html_for_notebooks_is_escaped() -> None:
    text = FITS._repr_html_()
    assert "<th>RTX 3060 12 GB</th><td>fits, margin 8.32 GiB</td>" in text
    assert "<th>Device peak</th><td>3.43 GiB</td>" in text


def measured(*ranks: tuple[int, int]) -> Measured:
    """Of ranks with (reserved, allocated) each, the first one captured."""
    peaks = tuple(RankPeak(rank, 0, *held) for rank, held in enumerate(ranks))
    return Measured(peaks[0].peak_reserved_bytes, peaks[0].peak_allocated_bytes, True, peaks)


def test_measured_survives_json() -> None:
    estimate = replace(FITS, measured=measured((90, 70), (60, 50)))
    assert Estimate.from_json(json.loads(json.dumps(estimate.to_json()))) == estimate


def test_what_is_seen_in_a_console_leaves_out_tables_and_curves() -> None:
    curve = Curve(tuple(range(200)), (1,) * 200, (2,) * 200)
    text = repr(replace(FITS, curve=curve))
    assert "device_peak_bytes=" in text
    assert "fits=True" in text
    assert not any(
        f"{name}=" in text for name in ("breakdown", "policies", "curve", "card", "largest_blocks")
    )


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("peak_allocated_bytes",), "x", "peak_allocated_bytes must be a whole number, not 'x'"),
        (("peak_allocated_bytes",), True, "peak_allocated_bytes must be a whole number, not True"),
        (("peak", "phase"), None, "peak.phase must be text, not None"),
        (("verdict", "fits"), 1, "verdict.fits must be true or false, not 1"),
        (("breakdown",), None, "breakdown must be an object, not None"),
        (("breakdown", "category"), [1], r"breakdown.category must be an object, not \[1\]"),
        (
            ("breakdown", "category", "activation"),
            "1",
            "breakdown.category.activation must be a whole number",
        ),
        (
            ("breakdown", "paths", 0, "bytes"),
            1.5,
            r"breakdown.paths\[0\].bytes must be a whole number, not 1.5",
        ),
        (("policies",), {}, "policies must be a list"),
        (("trace", "source"), "elsewhere", "trace.source must be capture or foreign, not 'elsewhere'"),
        (("timings_s", "read"), "fast", "timings_s.read must be a number, not 'fast'"),
        (("peak", "surprise"), 1, "peak.surprise is not known"),
    ],
)
def test_values_of_another_kind_are_damage(place: tuple[str | int, ...], value: Any, says: str) -> None:
    data = json.loads(json.dumps(FITS.to_json()))
    inner = data
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(TraceError, match=says):
        Estimate.from_json(data)


def test_a_job_that_fits_may_not_fit_by_its_interval() -> None:
    assert FITS.verdict is not None
    capacity = FITS.verdict.capacity_bytes
    sure = Interval(0.9, 1, capacity, "measured runs")
    assert replace(FITS, interval=sure).doubt is None
    assert replace(FITS, interval=None).doubt is None
    unsure = replace(sure, high_bytes=capacity + (1 << 30))
    assert replace(DOES_NOT_FIT, interval=unsure).doubt is None
    assert replace(NO_GPU, interval=unsure).doubt is None
    doubt = replace(FITS, interval=unsure).doubt
    assert doubt == f"It may not fit: the interval reaches {format_bytes(capacity + (1 << 30))}"
