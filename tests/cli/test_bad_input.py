"""Bad input, as typed: one clear message on stderr, the right exit code, never a traceback, never a hang."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import pytest

import xmem
from xmem.testing.trace_builder import TraceBuilder

DONE, TOO_BIG, USAGE, BAD_INPUT = 0, 1, 2, 3
TIME_LIMIT_S = 60

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("xmem.cli") is None or not hasattr(xmem, "read_trace"),
    reason="the command is not built here",
)

GPU = ("--gpu", "rtx-3060")
ENGINE = "autograd::engine::evaluate_function: "
Write = Callable[[Path], Path]


def training(iterations: int = 3) -> TraceBuilder:
    """A training loop of a linear layer, with marks of the profiler alone."""
    trace = TraceBuilder().alloc(0x50, 1 << 20, 1)
    for number in range(iterations):
        start = 10 + number * 100
        (
            trace.operator("aten::linear", start, start + 20, sequence_number=number)
            .alloc(0x1000, 1 << 20, start + 10)
            .operator(f"{ENGINE}AddmmBackward0", start + 30, start + 50, sequence_number=number)
            .operator("AddmmBackward0", start + 31, start + 49, sequence_number=number)
            .alloc(0x2000, 1 << 20, start + 40)
            .free(0x1000, start + 45)
            .annotation("Optimizer.step#SGD.step", start + 60, start + 70)
            .annotation("Optimizer.zero_grad#SGD.zero_grad", start + 80, start + 90)
            .free(0x2000, start + 85)
        )
    return trace


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xmem.cli.main", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=TIME_LIMIT_S, env=environment, check=False
    )


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """The message on stderr as one line, after checking what holds for every one."""
    assert "Traceback" not in result.stderr
    assert result.stderr.strip(), "nothing on stderr"
    assert not result.stdout.strip(), "results only on stdout"
    return " ".join(result.stderr.split())


# Files that cannot be used.


def written(data: bytes, name: str = "bad.json") -> Write:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return write


def missing(folder: Path) -> Path:
    return folder / "missing.json"


def a_directory(folder: Path) -> Path:
    (folder / "bad.json").mkdir()
    return folder / "bad.json"


def unreadable(folder: Path) -> Path:
    path = training().write(folder / "bad.json")
    path.chmod(0)
    return path


def cut(where: Callable[[bytes], int]) -> Write:
    text = training().bytes()
    return written(text[: where(text)])


def cut_gzip(folder: Path) -> Path:
    data = training(20).write(folder / "whole.json.gz").read_bytes()
    (folder / "bad.json.gz").write_bytes(data[: len(data) // 2])
    return folder / "bad.json.gz"


def trace_file(trace: TraceBuilder) -> Write:
    return lambda folder: trace.write(folder / "bad.json")


def no_memory() -> TraceBuilder:
    trace = training()
    trace.events = [event for event in trace.events if event["name"] != "[memory]"]
    return trace


def without_a_step() -> TraceBuilder:
    trace = TraceBuilder().operator("aten::linear", 0, 9).alloc(0x10, 512, 1).free(0x10, 8)
    return trace.backward("AddmmBackward0", 20, 29, sequence_number=1).alloc(0x10, 512, 21).free(0x10, 28)


SNAPSHOT = pickle.dumps({"segments": [], "device_traces": [[]], "allocator_settings": {}}, protocol=2)
OFFSET = r"byte [\d,]+"
ANOTHER = r"[Cc]heck|[Rr]ecord|[Pp]ass|[Gg]ive|[Cc]opy|[Uu]se|[Tt]ry|[Rr]un|[Nn]ame"


@dataclass(frozen=True)
class Unusable:
    """A file that no estimate can be made of, and what the message must hold."""

    name: str
    write: Write
    says: tuple[str, ...] = ()
    marks: tuple[pytest.MarkDecorator, ...] = field(default=())


UNUSABLE = (
    Unusable("missing", missing, ("(?i)no such file|not found|does not exist",)),
    Unusable("empty", written(b""), ("(?i)empty",)),
    Unusable("blank", written(b" \n"), ("(?i)empty|JSON",)),
    Unusable("cut_in_an_event", cut(lambda text: text.index(b"AddmmBackward0")), (OFFSET,)),
    Unusable("cut_after_an_event", cut(lambda text: text.rindex(b"\n  }") + 4), (OFFSET,)),
    Unusable("cut_after_a_comma", cut(lambda text: text.rindex(b"  },\n") + 5), (OFFSET,)),
    Unusable("text", written(b"Epoch 1: loss 0.31\n"), ("JSON",)),
    Unusable("png", written(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), ("JSON",)),
    Unusable("object_without_events", written(b'{"a": 1}'), ("traceEvents|trace",)),
    Unusable("array_of_numbers", written(b"[1, 2]"), ("(?i)event|trace",)),
    Unusable("json_text", written(b'"text"'), ("(?i)event|trace",)),
    Unusable("events_no_array", written(b'{"traceEvents": 7}'), ("traceEvents|trace",)),
    Unusable("no_events", written(b'{"traceEvents": []}'), ("(?i)memory|event",)),
    Unusable("no_memory", trace_file(no_memory()), ("profile_memory",)),
    Unusable("no_optimizer_step", trace_file(without_a_step()), ("(?i)training loop|optimizer",)),
    Unusable("cut_gzip", cut_gzip, ("(?i)gzip|compressed",)),
    Unusable("no_gzip", written(b"this was never compressed", "bad.json.gz"), ("(?i)gzip|compressed",)),
    Unusable("snapshot", written(SNAPSHOT, "bad.pickle"), ("(?i)snapshot|JSON",)),
    Unusable("directory", a_directory, ("(?i)directory|folder",)),
    Unusable(
        "unreadable",
        unreadable,
        ("(?i)permission",),
        (pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file"),),
    ),
)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=case.marks) for case in UNUSABLE])
def test_unusable_files(case: Unusable, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    result = run("estimate", path, *GPU)
    message = complaint(result)
    assert result.returncode == BAD_INPUT, message
    for expected in (re.escape(path.name), ANOTHER, *case.says):
        assert re.search(expected, message), message


# Files with something wrong in them, that can be used.


def shuffled(trace: TraceBuilder) -> TraceBuilder:
    """Every second event first: out of order in the file, and without numbers."""
    bare = [
        {**event, "args": {key: value for key, value in event["args"].items() if key != "Ev Idx"}}
        for event in trace.events
    ]
    return TraceBuilder(numbering="none", events=bare[1::2] + bare[::2])


def with_a_free_of_an_unknown_address() -> TraceBuilder:
    return training().free(0x9000, 15, size=4096)


def with_names(name: bytes) -> bytes:
    return training().bytes().replace(b"aten::linear", name)


def with_a_bad_event() -> TraceBuilder:
    return training().event({"ph": "X", "cat": "cpu_op", "name": "aten::no_time", "dur": Decimal(1)})


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        pytest.param(with_names(b"aten::\xff\xfelinear"), r"utf|text|character", id="invalid_utf8"),
        pytest.param(with_names(b"aten::lin\x01ear\n"), r"control|text|character", id="control_characters"),
        pytest.param(
            with_a_free_of_an_unknown_address().bytes(),
            "free_of_unknown_address",
            id="free_of_unknown_address",
        ),
        pytest.param(with_a_bad_event().bytes(), "bad_event", id="event_without_time"),
        pytest.param(
            training().memory(0, 5, address=8).bytes(), "empty_memory_event", id="empty_memory_event"
        ),
        pytest.param(training().alloc(0x50, 64, 290).bytes(), "missed_free", id="missed_free"),
    ],
)
def test_problems_are_counted_and_located(data: bytes, kind: str, tmp_path: Path) -> None:
    path = written(data, "odd.json")(tmp_path)
    result = run("estimate", path, *GPU, "--json")
    assert "Traceback" not in result.stderr
    assert result.returncode in (DONE, TOO_BIG), result.stderr
    diagnostics = json.loads(result.stdout)["diagnostics"]
    found = [entry for entry in diagnostics if re.search(kind, entry["kind"])]
    assert found, diagnostics
    assert found[0]["count"] >= 1
    assert found[0]["first_byte_offset"] < len(data)


def test_the_order_in_the_file_does_not_matter(tmp_path: Path) -> None:
    in_order = run("estimate", training().write(tmp_path / "a.json"), *GPU, "--json")
    out_of_order = run("estimate", shuffled(training()).write(tmp_path / "b.json"), *GPU, "--json")
    assert out_of_order.returncode == in_order.returncode == DONE, out_of_order.stderr
    keys = ("peak_reserved_bytes", "peak_allocated_bytes", "peak_requested_bytes", "breakdown")
    first, second = json.loads(in_order.stdout), json.loads(out_of_order.stdout)
    assert {key: second[key] for key in keys} == {key: first[key] for key in keys}


# Invalid settings.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param(("--gpu", "rtx3061"), r"rtx-?3060", id="misspelt_gpu"),
        pytest.param(("--gpu", "abacus"), "abacus", id="no_gpu_at_all"),
        pytest.param(
            (*GPU, "--alloc-conf", "max_split_size_mb:banana"), "max_split_size_mb|banana", id="conf_value"
        ),
        pytest.param((*GPU, "--alloc-conf", "no_such_option:1"), "no_such_option", id="conf_option"),
        pytest.param((*GPU, "--alloc-conf", "nonsense"), "nonsense", id="conf_without_value"),
        pytest.param(("--capacity", "banana"), r"banana.*(GiB|GB)", id="capacity_in_bananas"),
        pytest.param(("--capacity", "-4GiB"), r"4GiB", id="negative_capacity"),
        pytest.param((*GPU, "--no-such-option"), "no-such-option", id="unknown_option"),
    ],
)
def test_invalid_settings(options: tuple[str, ...], says: str, tmp_path: Path) -> None:
    result = run("estimate", training().write(tmp_path / "good.json"), *options)
    message = complaint(result)
    assert result.returncode == USAGE, message
    assert re.search(says, message), message


def test_capacity_wins_over_the_gpus_own(tmp_path: Path) -> None:
    path = training().write(tmp_path / "good.json")
    fits = run("estimate", path, *GPU, "--json")
    too_small = run("estimate", path, *GPU, "--capacity", "147MiB", "--json")
    assert (fits.returncode, too_small.returncode) == (DONE, TOO_BIG), too_small.stderr
    assert json.loads(too_small.stdout)["verdict"]["capacity_bytes"] == 147 << 20


def test_no_file_at_all_is_usage() -> None:
    result = run("estimate")
    assert result.returncode == USAGE
    assert "Traceback" not in result.stderr
