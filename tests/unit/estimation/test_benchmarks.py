"""The benchmarks' own arithmetic: what they weigh, judge and write down is what was there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return bench_module("measure", monkeypatch)


def bench_module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return pytest.importorskip(name)


def test_memory_of_a_child_is_what_it_touched(measure: ModuleType) -> None:
    program = "import time; held = bytearray(b'x') * (64 << 20); time.sleep(0.2); print('{}')"
    peak = measure.run([sys.executable, "-c", program], weigh=True).peak_anonymous_bytes
    assert 64 * MIB <= peak < 96 * MIB


def test_pages_of_files_are_not_memory(measure: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "mapped"
    file.write_bytes(b"x" * (64 << 20))
    program = (
        "import mmap, sys, time; file = open(sys.argv[1], 'rb');"
        "text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); text.find(b'y'); time.sleep(0.2);"
        "print('{}')"
    )
    assert measure.run([sys.executable, "-c", program, str(file)], weigh=True).peak_anonymous_bytes < 32 * MIB


def test_a_failed_child_is_no_measurement(measure: ModuleType) -> None:
    with pytest.raises(measure.ChildFailedError, match="exit code 3: out of luck"):
        measure.run([sys.executable, "-c", "import sys; print('out of luck', file=sys.stderr); sys.exit(3)"])


def test_a_child_keeps_to_its_cores(measure: ModuleType) -> None:
    program = "import os, json; print(json.dumps(sorted(os.sched_getaffinity(0))))"
    cpus = measure.first_cpu()
    assert measure.run([sys.executable, "-c", program], cpus=cpus).output == sorted(cpus)


def test_rounds_are_interleaved(measure: ModuleType) -> None:
    order: list[str] = []
    measure.interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b", "a", "b"]


def test_readers_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = bench_module("compare_readers", monkeypatch)
    answer = {"events": {"cpu_op": 2, "cpu_instant_event": 1}, "memory_events": 1, "freed_bytes": 5}
    drops_memory = {"events": {"cpu_op": 2}, "memory_events": None, "freed_bytes": None}
    compare.require_agreement({"xmem": answer, "orjson": answer, "hta": drops_memory})
    with pytest.raises(compare.DisagreementError, match="freed_bytes: orjson found 6"):
        compare.require_agreement({"xmem": answer, "orjson": {**answer, "freed_bytes": 6}})
    with pytest.raises(compare.DisagreementError, match="Holistic"):
        compare.require_agreement({"xmem": answer, "hta": {**drops_memory, "events": {"cpu_op": 1}}})


def test_bars_are_met_missed_or_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = bench_module("bars", monkeypatch)
    verdicts = {
        verdict.bar.figure: verdict
        for verdict in bars.judge(
            {"rate / simdjson": 0.66, "estimate s": 1.51}, {"estimate s": 1.0, "rate / simdjson": 0.6}
        )
    }
    assert verdicts["rate / simdjson"].says == "met"
    assert not verdicts["rate / simdjson"].moved
    assert verdicts["estimate s"].says == "MISSED"
    assert verdicts["estimate s"].change == pytest.approx(0.51)
    assert verdicts["estimate s"].moved
    assert verdicts["start-up s"].says == "not run"


def test_figures_stand_between_the_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = bench_module("results", monkeypatch)
    baseline = json.loads((ROOT / "bench" / "baseline.json").read_text())
    page = tmp_path / "page.md"
    page.write_text(f"before\n{results.BEGIN}\nold\n{results.END}\nafter\n")
    results.write_figures(baseline, page)
    text = page.read_text()
    assert text.startswith(f"before\n{results.BEGIN}\n{baseline['machine']['cpu']}")
    assert text.endswith(f"{results.END}\nafter\n")
    assert "old" not in text.split("\n")
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the lines"):
        results.write_figures(baseline, page)


@pytest.mark.parametrize("reader", ["xmem", "pysimdjson", "json"])
def test_readers_count_the_same(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reader == "pysimdjson":
        pytest.importorskip("simdjson")
    readers = bench_module("readers", monkeypatch)
    path = tmp_path / "trace.json"
    make_trace = [sys.executable, str(ROOT / "bench" / "make_trace.py"), "--events", "2000", "-o", str(path)]
    subprocess.run([*make_trace, "--python-functions", "0.5"], check=True)
    read, summarize = readers.READERS[reader]()
    events = json.loads(path.read_text())["traceEvents"]
    signed = [event["args"]["Bytes"] for event in events if event["name"] == "[memory]"]
    answer = summarize(read(path))
    assert answer.memory_events == len(signed)
    assert answer.allocated_bytes == sum(size for size in signed if size > 0)
    assert answer.freed_bytes == -sum(size for size in signed if size < 0)
    assert sum(answer.events.values()) == len(events)
