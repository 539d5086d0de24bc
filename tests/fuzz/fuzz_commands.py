"""Fuzz whole commands: odd files and odd command lines must end in an answer or in a sentence.

A case is a command line over small files of one kind (traces with and without our metadata, estimates,
models, snapshots, TOML files), most of them damaged. It breaks the law when it ends in an exception or with
exit status 70, or takes more than 5 seconds for each MB of its file, or more than 1 GB beyond what the
process had. What breaks it is kept, with the command line, in `build/fuzz/findings/commands-SEED-CASE`.

Usage: python tests/fuzz/fuzz_commands.py --runs N | --seconds N  [--seed N] [--first N] [--jobs N]
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import math
import multiprocessing
import os
import pickle
import random
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import typer

import xmem
from xmem.cli.main import app
from xmem.testing.trace_builder import TraceBuilder

MOST_SECONDS_PER_MB = 5.0
MOST_MORE_BYTES = 10**9
CASES_OF_A_PROCESS = (
    20_000  # few enough that what one command leaves behind does not look like the next one's
)
IN_MEMORY = Path("/dev/shm")
FINDINGS = Path(__file__).parents[2] / "build" / "fuzz" / "findings"
ALLOWED = {0, 1, 2, 3}

ODD_NUMBERS = [
    0,
    -1,
    1,
    2,
    511,
    1 << 31,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 64,
    10**30,
    0.5,
    -0.0,
    1e308,
    float("nan"),
]
ODD_VALUES: list[Any] = [
    *ODD_NUMBERS, None, True, False, "", "a", "\x1b]0;x\x07", "::error::", "\udc80", "9" * 5000, [], {}, [[]],
    [None], {"a": 1}, [1, "a", None], {"": {}},
]  # fmt: skip
ODD_TEXTS = [
    "", "-", "--", "0", "-1", "1", "nan", "inf", "-inf", "1e9", "1e400", "9" * 400, "1_0", "0x10", "1GiB",
    "1e30GiB", "batch_size=1000000000",
    "-5GiB", "1.5.2", "50%", "-3%", "1e99%", "a", "a=b", "a=1", "=", "a=,", "batch_size=1", "batch_size=1e9",
    "batch_size=99999999999999999999", "accumulate=1000000", "accumulate=0", "optimizer=x",
    "optimizer=adamw:fused", "expandable_segments:True", "max_split_size_mb:99999999999999", "a:b,c",
    "garbage_collection_threshold:nan", "http://[::1", "ftp://x/y", "file://", "://", "s3://", ".", "/",
    "/dev/null", "nobody\x00here", "\udc80", "é", "rtx-3090", "h100", "all", "2.13.0", "1.9", "99.99",
    "2.13.0.dev1", "text", "json", "no-such-command-xyz",
]  # fmt: skip


# Files.


def trace(memory_on: str = "cpu") -> TraceBuilder:
    """Two iterations of training a linear layer with Adam."""
    device = {"device_type": 1, "device_index": 0} if memory_on == "gpu" else {}
    built = TraceBuilder()
    addresses = {"weight": 0x10000, "state": 0x20000, "state2": 0x30000}
    built.alloc(addresses["weight"], 40960, 1, **device)
    for number in range(2):
        at = 1000 * number
        built.iteration(number, at, at + 900)
        built.module("Net.body", at + 10, at + 90).line("train.py", 12, at + 10, at + 95)
        built.operator(
            "aten::linear", at + 10, at + 80, sequence_number=number, input_types=["float", "float", ""],
            input_dims=[[8, 100], [100, 100], []], concrete_inputs=["", "", ""],
        )  # fmt: skip
        built.alloc(0x40000, 4096, at + 20, **device)
        built.backward("AddmmBackward0", at + 200, at + 400, sequence_number=number)
        built.alloc(0x50000, 40960, at + 250, **device).free(0x40000, at + 300, **device)
        built.annotation("Optimizer.step#Adam.step", at + 500, at + 700)
        if number == 0:
            built.alloc(addresses["state"], 40960, at + 550, **device)
            built.alloc(addresses["state2"], 40960, at + 560, **device)
        built.annotation("Optimizer.zero_grad#Adam.zero_grad", at + 800, at + 850)
        built.free(0x50000, at + 820, **device)
    return built


# Operators whose memory on a GPU follows from their inputs: shapes, strides, types, and numbers.
LAYERS: list[tuple[str, list[Any], list[Any], list[str], list[str]]] = [
    (
        "aten::_convolution",
        [[2, 3, 8, 8], [4, 3, 3, 3], [4], *([[]] * 10)],
        [[192, 64, 8, 1], [27, 9, 3, 1], [1], *([[]] * 10)],
        ["float", "float", "float", *(["Scalar"] * 10)],
        ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", "False", "False", "True", "True"],
    ),
    (
        "aten::convolution_backward",
        [[2, 4, 7, 7], [2, 4, 6, 6], [4, 4, 2, 2], *([[]] * 8)],
        [[196, 49, 7, 1], [144, 36, 6, 1], [16, 4, 2, 1], *([[]] * 8)],
        ["float", "float", "float", *(["Scalar"] * 8)],
        ["", "", "", "[4]", "[1, 1]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1", "[True, True, True]"],
    ),
    (
        "aten::lstm",
        [[2, 4, 16], [[1, 2, 8], [1, 2, 8]], [[32, 16], [32, 8], [32], [32]], *([[]] * 6)],
        [[64, 16, 1], [[16, 8, 1], [16, 8, 1]], [[16, 1], [8, 1], [1], [1]], *([[]] * 6)],
        ["float", "TensorList", "TensorList", *(["Scalar"] * 6)],
        ["", "", "", "True", "1", "0.1", "True", "False", "True"],
    ),
    (
        "aten::scaled_dot_product_attention",
        [*([[2, 2, 5, 4]] * 3), *([[]] * 5)],
        [*([[8, 4, 16, 1]] * 3), *([[]] * 5)],
        [*(["c10::BFloat16"] * 3), "", "Scalar", "Scalar", "", "Scalar"],
        ["", "", "", "", "0.", "False", "", "False"],
    ),
    (
        "aten::sum",
        [[256, 4], [], []],
        [[4, 1], [], []],
        ["float", "ScalarList", "Scalar"],
        ["", "[0]", "True"],
    ),
    (
        "aten::embedding_dense_backward",
        [[2, 5, 8], [2, 5], [], [], []],
        [[40, 8, 1], [5, 1], [], [], []],
        ["float", "long int", "Scalar", "Scalar", "Scalar"],
        ["", "", "10", "-1", "False"],
    ),
]  # fmt: skip


def layers() -> TraceBuilder:
    """The same two iterations, with operators for which a GPU needs more than their results."""
    built = trace()
    for number in range(2):
        for place, (name, shapes, strides, types, values) in enumerate(LAYERS):
            at, address = 1000 * number + 100 + 15 * place, 0x100000 + 0x10000 * place
            built.operator(
                name, at, at + 10, sequence_number=10 + place, input_dims=shapes, input_strides=strides,
                input_types=types, concrete_inputs=values,
            )  # fmt: skip
            built.alloc(address, 2048, at + 5)
            built.free(address, 1000 * number + 600 + place)
    return built


def captured(*, on_phantom: bool, with_layers: bool = False) -> bytes:
    """The same with everything that our capture notes."""
    built = layers() if with_layers else trace("gpu" if on_phantom else "cpu")
    tensors = {
        "role": ["parameter", "optimizer_state", "gradient"],
        "name": ["Net.body.weight", "Net.body.weight.exp_avg", "Net.body.weight"],
        "address": [0x10000, 0x20000, 0x50000],
        "size_bytes": [40960] * 3,
        "time_ns": [1500, 560_000, 260_000],
        "dtype": ["float32"] * 3,
        "shape": [[100, 100]] * 3,
        "group": [0, -1, -1],
    }
    rank = {"device": 0, "peak_reserved_bytes": 2 << 20, "peak_allocated_bytes": 170_000, "card": 0}
    requests = {
        "device": 0,
        "address": [0x10000, 0x40000, 0x50000, 0x20000, 0x30000, 0x40000, 0x50000],
        "size_bytes": [40960, 4096, 40960, 40960, 40960, 4096, 40960],
        "order": [-1, -1, -1, 1, -1, -1, 2, -1, -1, 5, 6],
        **{name: [] for name in ("stream", "mempool", "waits", "marks", "restored")},
    }
    card = {"card": 0, "peak_bytes": 200 << 20, "contexts": 1, "context_bytes": 190 << 20}
    phantom = {
        "alloc_conf": "",
        "ranks": [{"rank": 0, "devices": [rank], "place": [{"name": "tp", "index": 0, "size": 2}]}],
        "cards": [card],
        "requests": [requests],
        "cudnn": {"planned_by": "cuDNN 9"},
        "values": [{"kind": "sizes", "line": "train.py:12"}],
    }
    built.metadata = {
        "format": 1,
        "mode": "phantom" if on_phantom else "real",
        "versions": {"xmem": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7"},
        "argv": ["train.py", "--batch-size", "8"],
        "iterations": 2,
        "iteration_kind": "step",
        "device_requests": 4,
        "settings": {"cudnn_enabled": True, "autocast": None, "channels_last": False, "environment": {}},
        "alignments": [],
        "assumptions": ["2 iterations were recorded"],
        "lines": {"train.py:12": {"function": "main", "text": "loss = model(x)"}},
        "modules": [{"name": "Net", "parameters": 10_000, "parameter_bytes": 40_000}],
        "tensors": tensors,
        "optimizers": [{"name": "Adam", "foreach": True, "fused": False, "parameters": 1, "steps": 2}],
        "script_ended": False,
        **({"phantom": phantom} if on_phantom else {}),
    }
    return built.bytes("compact")


def snapshot() -> dict[str, Any]:
    """A memory snapshot of one segment."""
    mib = 1 << 20
    block = {"address": 1 << 30, "size": 3 * mib, "requested_size": 3 * mib - 5, "state": "active_allocated"}
    rest = {"address": (1 << 30) + 3 * mib, "size": 17 * mib, "requested_size": 0, "state": "inactive"}
    segment = {
        "device": 0, "address": 1 << 30, "total_size": 20 * mib, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "blocks": [block, rest],
    }  # fmt: skip
    events = [("segment_alloc", 20 * mib), ("alloc", 3 * mib - 5)]
    entries = [
        {"action": a, "addr": 1 << 30, "size": s, "stream": 0, "time_us": 7, "frames": []} for a, s in events
    ]
    return {"segments": [segment], "device_traces": [entries], "allocator_settings": {}}


CHECK = """
[check]
gpu = "rtx-3060"
max_growth = "5%"
iterations = 2
[check.jobs.one]
trace = "phantom.json"
budget = "1GiB"
confidence = 0.9
[check.jobs.two]
command = ["no-such-command-xyz", "--layers", "2"]
"""
SWEEP = """
[job]
model = "model.xmem"
[grid]
batch_size = [1, 2]
gpu = ["rtx-3060", "24GiB"]
alloc_conf = ["", "expandable_segments:True"]
what_if = ["", "accumulate=2"]
"""
RUNS = """set,family,model,optimizer,batch_size,gpu,gpu_total_bytes,zero_grad_mode,nvml_peak_bytes,real_oom,\
xmem_estimate_bytes,xmem_second_round_oom,xmem_runtime_s
001,CNN,ResNet,Adam,300,NVIDIA GeForce RTX 3060,12622168064,1,10521411584,false,10808721408,false,24.09
001,CNN,VGG,SGD,200,NVIDIA GeForce RTX 3060,12622168064,,9521411584,true,,,
"""
ESTIMATES = """set,family,model,optimizer,batch_size,gpu,zero_grad_mode,way,estimate_bytes,estimated_oom,\
seconds,low_bytes,high_bytes,note
001,CNN,ResNet,Adam,300,NVIDIA GeForce RTX 3060,1,fake,10521411584,false,1.5,10421411584,10621411584,a
001,CNN,VGG,SGD,200,NVIDIA GeForce RTX 3060,,fake,9521411584,true,,,,
"""
GPU = Path(xmem.__file__).parent / "data" / "gpus" / "ampere" / "rtx-3090.toml"

Files = dict[str, bytes]


def good_files(run: Callable[[list[str]], int]) -> Files:
    """Every kind of file that the commands read, made in the working folder."""
    made: Files = {
        "foreign.json": trace().bytes(),
        "gpu.json": trace("gpu").bytes("compact"),
        "cpu.json": captured(on_phantom=False),
        "layers.json": captured(on_phantom=False, with_layers=True),
        "phantom.json": captured(on_phantom=True),
        "snapshot.pickle": pickle.dumps(snapshot()),
        "check.toml": CHECK.encode(),
        "sweep.toml": SWEEP.encode(),
        "runs.csv": RUNS.encode(),
        "estimates.csv": ESTIMATES.encode(),
        "gpu.toml": GPU.read_bytes(),
    }
    for name, content in made.items():
        Path(name).write_bytes(content)
    for arguments in (
        ["estimate", "phantom.json", "--gpu", "rtx-3090", "-o", "estimate.json"],
        ["gpus", "rtx-3090", "--json"],
    ):
        if run(arguments) != 0:
            raise SystemExit(f"the good case {arguments} fails")
    if run(["validate", "--runs", "runs.csv", "--estimates", "estimates.csv"]) not in (0, 1):
        raise SystemExit("the good case of validate fails")
    made["estimate.json"] = Path("estimate.json").read_bytes()
    index = {
        "format": 1,
        "dimensions": ["batch_size"],
        "samples": [{"trace": f"traces/{n}.json", "point": {"batch_size": n}} for n in (1, 2)],
        "command": ["python", "train.py", "{batch_size}"],
    }
    made["model.xmem"] = archive(index, captured(on_phantom=True))
    return made


def archive(index: object, trace_bytes: bytes) -> bytes:
    """A model of twice the same trace."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for number in (1, 2):
            packed.writestr(f"traces/{number}.json", trace_bytes)
        packed.writestr("model.json", json.dumps(index))
    return file.getvalue()


# Damage.


class Chance(random.Random):
    """A source of random choices.

    Attributes:
        changes: How many changes of files were drawn from it.
    """

    changes = 0

    def some_changes(self, most: int) -> range:
        """From one to ``most`` changes."""
        count = self.randint(1, most)
        self.changes += count
        return range(count)


def places(of: Any, found: list[tuple[Any, Any]] | None = None) -> list[tuple[Any, Any]]:
    """Every place of a value inside lists and dicts."""
    found = [] if found is None else found
    for key, value in list(of.items()) if isinstance(of, dict) else enumerate(of):
        found.append((of, key))
        if isinstance(value, dict | list):
            places(value, found)
    return found


def change_values(value: Any, chance: Chance) -> Any:
    """The value with one to three of its parts replaced, left out, repeated or nested."""
    value = copy.deepcopy(value)
    for _ in chance.some_changes(3):
        here = places(value)
        if not here:
            return chance.choice(ODD_VALUES)
        of, key = chance.choice(here)
        what = chance.randrange(6)
        if what == 0:
            del of[key]
        elif what == 1 and isinstance(of, list):
            of.extend([of[key]] * chance.choice([1, 10, 1000]))
        elif what == 2:
            other, other_key = chance.choice(here)
            try:
                of[key] = copy.deepcopy(other[other_key])
            except (KeyError, IndexError):
                del of[key]
        else:
            of[key] = copy.deepcopy(chance.choice(ODD_VALUES))
    return value


def change_bytes(content: bytes, chance: Chance) -> bytes:
    """The bytes with a few of them replaced, left out, repeated or cut off."""
    for _ in chance.some_changes(4):
        at, length = chance.randrange(len(content) + 1), chance.choice([1, 1, 2, 8, 100])
        what = chance.randrange(5)
        if what == 0:
            content = content[:at] + chance.randbytes(length) + content[at + length :]
        elif what == 1:
            content = content[:at] + content[at + length :]
        elif what == 2:
            content = (
                content[:at] + content[at : at + length] * chance.choice([2, 50]) + content[at + length :]
            )
        elif what == 3:
            number = str(chance.choice(ODD_NUMBERS)).encode()
            content = content[:at] + number + content[at + length :]
        elif chance.random() < 0.3:
            content = content[:at]
    return content


def deep(chance: Chance) -> bytes:
    """Text that nests without an end."""
    chance.changes += 1
    count = chance.choice([500, 5_000, 100_000])
    return chance.choice([b"[" * count, b'{"a":' * count, b"a = " + b"[" * count, b"a = " + b"{b=" * count])


def damaged(name: str, content: bytes, chance: Chance) -> bytes:
    """A file of the kind that its name says, with something odd about it."""
    if chance.random() < 0.01:
        return deep(chance)
    if chance.random() < 0.3:
        return change_bytes(content, chance)
    if name.endswith(".json"):
        value = json.loads(content)
        if isinstance(value, dict) and "xmem" in value and chance.random() < 0.7:
            value["xmem"] = change_values(value["xmem"], chance)
        else:
            value = change_values(value, chance)
        return json.dumps(value).encode()
    if name.endswith(".pickle"):
        return pickle.dumps(change_values(snapshot(), chance))
    if name.endswith(".xmem"):
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            index, trace_bytes = json.loads(packed.read("model.json")), packed.read("traces/1.json")
        if chance.random() < 0.3:
            return archive(index, damaged("trace.json", trace_bytes, chance))
        return archive(change_values(index, chance), trace_bytes)
    text = content.decode()
    chance.changes += 1
    word = chance.choice(text.split())
    odd = chance.choice(
        [*map(str, ODD_NUMBERS), '""', "[]", "{}", "[[]]", '"x"', "true", "1979-05-27", "=", '"""']
    )
    return text.replace(word, odd, 1).encode("utf-8", "replace")


# Command lines.

READS = {
    "estimate": (
        "foreign.json",
        "gpu.json",
        "cpu.json",
        "layers.json",
        "phantom.json",
        "model.xmem",
        "gpu.toml",
    ),
    "report": ("foreign.json", "gpu.json", "cpu.json", "phantom.json", "estimate.json", "model.xmem"),
    "check": ("foreign.json", "cpu.json", "phantom.json", "estimate.json", "model.xmem", "check.toml"),
    "diff": ("cpu.json", "layers.json", "phantom.json", "estimate.json"),
    "inspect": ("foreign.json", "gpu.json", "cpu.json", "phantom.json"),
    "max-batch": ("model.xmem",),
    "tune": ("foreign.json", "gpu.json", "layers.json", "phantom.json", "model.xmem"),
    "advise": ("cpu.json", "layers.json", "phantom.json"),
    "occupancy": ("foreign.json", "gpu.json", "cpu.json", "layers.json", "phantom.json"),
    "replay": ("snapshot.pickle",),
    "validate": ("runs.csv", "estimates.csv", "estimate.json"),
    "sweep": ("sweep.toml",),
    "gpus": (),
    "policies": (),
    "fit": ("cpu.json",),
    "schema": (),
    "run": (),
    "capture": (),
}
# Commands that start other processes: few of the cases, as each takes as long as twenty others.
STARTS = ("run", "capture")
READ = [name for name in READS if name not in STARTS]
CHOICES = {
    "--format": "text json github sarif html terminal csv parquet memory_viz perfetto speedscope tree",
    "--what": "blocks breakdown timeline",
    "--metric": "device_peak reserved allocated",
    "--mode": "auto phantom real",
}
NOT_TRIED = {"--help", "--timeout", "--executor", "--address", "--plots", "--cudnn"}


class Arguments:
    """Draws command lines from what the commands say about themselves."""

    def __init__(self) -> None:
        self.commands: dict[str, Any] = group().commands

    def draw(self, name: str, file: str | None, odd: bool, chance: Chance) -> list[str]:
        """A command line; ``odd`` ones also have options that make no sense."""
        arguments = [name, *self._positional(name, file, chance)]
        options = [each for each in self.commands[name].params if each.opts[0].startswith("-")]
        for option in chance.sample(
            options, min(len(options), chance.choice([0, 1, 2, 4] if odd else [0, 1]))
        ):
            if not set(option.opts) & NOT_TRIED:
                arguments += [
                    option.opts[0],
                    *([] if option.is_flag else [self._value(option.opts[0], odd, chance)]),
                ]
        return arguments

    def _positional(self, name: str, file: str | None, chance: Chance) -> list[str]:
        given = [file] if file else []
        if name == "check" and file == "check.toml":
            return ["--config", file]
        if file == "gpu.toml":
            return ["phantom.json", "--gpu", file]
        if name == "diff":
            return [*given, chance.choice(["estimate.json", "phantom.json"])]
        if name == "inspect":
            return [*given, chance.choice(["events", "operators", "blocks", "sequence", "segments"])]
        if name == "fit":
            return [f"{file}@batch_size={chance.choice(['1', '2', *ODD_TEXTS])}", "-o", "fitted.xmem"]
        if name == "validate":
            runs, estimates = (file, "estimates.csv") if file == "runs.csv" else ("runs.csv", str(file))
            return ["--runs", runs, "--estimates", estimates]
        if name == "sweep":
            return [*given, "-o", "rows.csv"]
        if name in ("run", "capture"):
            return [*(["-o", "taken.json"] if name == "capture" else []), "no-such-command-xyz"]
        if name in ("gpus", "policies", "schema"):
            return [chance.choice(ODD_TEXTS)]
        return given

    def _value(self, option: str, odd: bool, chance: Chance) -> str:
        if option in ("-o", "--html", "--output"):
            return "written.out"
        if option in CHOICES and (not odd or chance.random() < 0.8):
            return chance.choice(CHOICES[option].split())
        if option == "--gpu" and chance.random() < 0.7:
            return "rtx-3090"
        return chance.choice(ODD_TEXTS)


# Running.


@cache
def group() -> Any:
    """The commands; made once, as only the first of a process makes them."""
    return typer.main.get_command(app)


def run(arguments: list[str]) -> int:
    """Run a command in this process; return its exit status."""
    try:
        group()(arguments, prog_name="xmem-fast")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def silently(arguments: list[str]) -> int:
    """The same without its output."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")  # as Python's own
    with redirect_stdout(output), redirect_stderr(errors):
        return run(arguments)


class Hang(BaseException):
    """A command took too long."""


def _hang(_signal: int, _frame: object) -> NoReturn:
    raise Hang


def try_case(arguments: list[str], most_seconds: float) -> str | None:
    """Run a command; return what law it broke."""
    signal.setitimer(signal.ITIMER_REAL, most_seconds)
    try:
        status = silently(arguments)
    except (Exception, Hang):
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None if status in ALLOWED else f"exit status {status}"


def limit_memory() -> None:
    """Let this process have a gigabyte more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + MOST_MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def keep(folder: Path, name: str, arguments: list[str], why: str) -> Path:
    """Keep the files and the command line of a case under a name."""
    kept = FINDINGS / name
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("written.out"))
    (kept / "command.txt").write_text(
        f"{arguments!r}\n{shlex.join(arguments)}\n\n{why}", errors="backslashreplace"
    )
    return kept


class Count(NamedTuple):
    """What a part of a campaign tried: commands, changes of their files, and how many broke a law."""

    commands: int
    changes: int
    found: int


def campaign(seed: int, cases: Iterable[int], most_findings: int) -> Count:
    """Try some of the cases of a seed, until so many break a law."""
    found = number = changes = 0
    line = Arguments()
    before = Path.cwd()
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        os.chdir(folder)
        try:
            files = good_files(silently)
            limit_memory()
            for case in cases:
                if found >= most_findings:
                    break
                chance = Chance(f"{seed} {case}")
                number += 1
                for old in os.scandir(folder):
                    if old.name not in files:
                        shutil.rmtree(old) if old.is_dir() else Path(old).unlink()
                command = chance.choice(STARTS if chance.random() < 0.002 else READ)
                file = chance.choice(READS[command]) if READS[command] else None
                size = 0
                if file and chance.random() < 0.9:
                    content = damaged(file, files[file], chance)
                    size = len(content)
                    Path(file).write_bytes(content)
                elif file and chance.random() < 0.3:
                    file = chance.choice(ODD_TEXTS)
                arguments = line.draw(command, file, chance.random() < 0.4, chance)
                changes += chance.changes
                why = try_case(arguments, MOST_SECONDS_PER_MB * max(1.0, size / 1e6))
                if why is not None:
                    found += 1
                    name = f"commands-{seed}-{case}"
                    where = keep(Path(folder), name, arguments, why)
                    print(f"{name}: {shlex.join(arguments)!r}\n{why[-1500:]}\n{where}", flush=True)
                for name, content in files.items():
                    if name == file or not Path(name).exists():
                        Path(name).write_bytes(content)
        finally:
            os.chdir(before)
    return Count(number, changes, found)


def part(seed: int, cases: range, end: float, most_findings: int) -> Count:
    """Try some of the cases in a process of its own, until the time is over."""
    signal.signal(signal.SIGALRM, _hang)
    sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123  for the commands that read it
    return campaign(seed, takewhile(lambda _: time.monotonic() < end, cases), most_findings)


def main() -> int:
    """Run a campaign as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, help="end after so many commands")
    parser.add_argument("--seconds", type=float, help="end after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--findings", type=int, default=1, help="end after so many")
    asked = parser.parse_args()
    if asked.runs is None and asked.seconds is None:
        parser.error("one of --runs and --seconds is needed")
    FINDINGS.mkdir(parents=True, exist_ok=True)
    end = math.inf if asked.seconds is None else time.monotonic() + asked.seconds
    last = asked.first + (sys.maxsize if asked.runs is None else asked.runs)
    size = min(CASES_OF_A_PROCESS, -(-(last - asked.first) // asked.jobs))
    first, total, pending = asked.first, Count(0, 0, 0), set[Future[Count]]()
    pool = ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    with pool:
        while True:
            while len(pending) < asked.jobs and first < last and time.monotonic() < end:
                cases = range(first, min(first + size, last))
                left = asked.findings - total.found
                if left <= 0:
                    break
                pending.add(pool.submit(part, asked.seed, cases, end, left))
                first = cases.stop
            if not pending:
                break
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for each in done:
                total = Count(*(sum(pair) for pair in zip(total, each.result(), strict=True)))
    print(f"{total.commands:,} commands on files with {total.changes:,} changes, {total.found} broke a law")
    return 1 if total.found else 0


if __name__ == "__main__":
    sys.exit(main())
