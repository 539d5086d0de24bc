"""The commands as typed: output, streams and exit statuses. The stages behind them are replaced by fakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

import xmem
import xmem.capture
import xmem.estimation.observation
import xmem.estimation.pipeline
import xmem.phantom.ledger
from command_line import xmem_fast
from estimate_samples import DOES_NOT_FIT, FITS, NO_GPU
from training_sample import training
from xmem.capture import (
    DescribedGpu,
    Extent,
    PhantomMachine,
    TorchBuild,
    World,
    imbalance_of,
    launched_world,
    path_with,
    with_python,
    world_of,
)
from xmem.errors import CaptureError, TraceError
from xmem.estimation.analysis import Analysis
from xmem.estimation.estimate import Estimate
from xmem.estimation.question import Question, ask
from xmem.phantom.ledger import ProcessRecord
from xmem.testing.trace_builder import TraceBuilder

SCRIPT = ["python", "train.py"]


@dataclass
class FakeStages:
    """What the commands called, and what they get."""

    estimate: Estimate = FITS
    error: BaseException | None = None
    iterations: int = 3
    torch: TorchBuild | None = None
    machine_has_gpu: bool = False
    processes: tuple[ProcessRecord, ...] = ()
    captures: list[dict[str, Any]] = field(default_factory=list)
    estimates: list[dict[str, Any]] = field(default_factory=list)

    def capture(self, command: list[str], output: Path, **options: Any) -> Any:
        self.captures.append({"command": command, "output": output, **options})
        if self.error is not None:
            raise self.error
        Path(output).write_text("{}")
        return types.SimpleNamespace(
            path=output,
            iterations=self.iterations,
            wall_s=12.5,
            exit_status=0,
            metadata={"format": 1},
            processes=self.processes,
        )

    def observe(self, trace: Path, without_policies: Sequence[str] = (), **_: Any) -> FakeRun:
        if self.error is not None:
            raise self.error
        return FakeRun(trace, tuple(without_policies))

    def answer(self, observed: FakeRun, question: Question, *, show_packages: bool) -> Analysis:
        self.estimates.append({**asdict(observed), "question": question, "show_packages": show_packages})
        return Analysis(self.estimate, *[cast(Any, None)] * 3, show_packages=False)


@dataclass(frozen=True)
class FakeRun:
    """What an observation was asked to be."""

    trace: Path
    without: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    def without_policies(self, *names: str) -> FakeRun:
        return replace(self, without=(*self.without, *names))

    def what_if(self, *changes: str) -> FakeRun:
        return replace(self, changes=(*self.changes, *changes))


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> FakeStages:
    fake = FakeStages()
    module = types.ModuleType("xmem.capture")
    module.__path__ = xmem.capture.__path__  # its other modules are the real ones
    module.DescribedGpu = DescribedGpu  # type: ignore[attr-defined]
    module.capture = fake.capture  # type: ignore[attr-defined]
    module.find_torch = lambda *_: fake.torch  # type: ignore[attr-defined]
    module.with_python, module.path_with = with_python, path_with  # type: ignore[attr-defined]
    module.has_gpu = lambda: fake.machine_has_gpu  # type: ignore[attr-defined]
    module.PhantomMachine, module.imbalance_of = PhantomMachine, imbalance_of  # type: ignore[attr-defined]
    module.Extent, module.world_of = Extent, world_of  # type: ignore[attr-defined]
    module.launched_world = launched_world  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xmem.capture", module)
    monkeypatch.setattr(xmem.estimation.pipeline, "answer", fake.answer)
    monkeypatch.setattr(xmem.estimation.observation, "observe", fake.observe)
    return fake


class TestEstimate:
    @pytest.mark.parametrize(("estimate", "status"), [(FITS, 0), (DOES_NOT_FIT, 1), (NO_GPU, 0)])
    def test_exit_status_is_the_verdict(self, stages: FakeStages, estimate: Estimate, status: int) -> None:
        stages.estimate = estimate
        assert xmem_fast("estimate", "trace.json").exit_code == status
        assert xmem_fast("estimate", "trace.json", "--json").exit_code == status

    def test_text_answers_first(self, stages: FakeStages) -> None:
        result = xmem_fast("estimate", "trace.json", "--gpu", "rtx-3060")
        assert result.stdout.startswith(
            "Fits on RTX 3060 12 GB: needs 3.43 GiB of 11.76 GiB, 8.32 GiB to spare\n"
        )
        assert result.stderr == ""
        assert stages.estimates[0]["question"] == ask(gpu="rtx-3060")

    def test_what_does_not_fit_is_told_where_to_ask_for_a_remedy(self, stages: FakeStages) -> None:
        stages.estimate = DOES_NOT_FIT
        result = xmem_fast("estimate", "trace.json", "--gpu", "rtx-4060")
        assert result.stderr == (
            "xmem-fast: what would save memory: xmem-fast advise trace.json --gpu rtx-3060\n"
        )
        stages.estimate = replace(DOES_NOT_FIT, trace=replace(DOES_NOT_FIT.trace, path=""))
        assert xmem_fast("estimate", "-", "--gpu", "rtx-4060").stderr == ""

    def test_json_is_one_object_and_the_contract(self, stages: FakeStages) -> None:
        result = xmem_fast("estimate", "trace.json", "--json")
        assert Estimate.from_json(json.loads(result.stdout)) == stages.estimate
        assert result.stderr == ""

    def test_options_reach_the_estimate(self, stages: FakeStages) -> None:
        xmem_fast(
            *["estimate", "a.json.gz", "--gpu", "A100 80GB", "--capacity", "40GiB", "--torch", "2.6"],
            *["--alloc-conf", "expandable_segments:True", "--what-if", "accumulate=4"],
            *["--without-policy", "resize_dropout_masks", "--without-policy", "recorded_activations"],
            *["--confidence", "0.99", "--show-packages"],
        )
        assert stages.estimates == [
            {
                "trace": "a.json.gz",
                "changes": ("accumulate=4",),
                "without": ("resize_dropout_masks", "recorded_activations"),
                "show_packages": True,
                "question": ask(
                    gpu="A100 80GB",
                    capacity=40 * 1024**3,
                    alloc_conf="expandable_segments:True",
                    torch_version="2.6",
                    confidence=0.99,
                ),
            }
        ]

    def test_an_unknown_policy_is_a_usage_error_that_lists_the_known_ones(self, stages: FakeStages) -> None:
        result = xmem_fast("estimate", "trace.json", "--without-policy", "resize_dropout_mask")
        assert result.exit_code == 2
        assert "did you mean resize_dropout_masks? Use one of drop_host_memory, " in result.stderr
        assert stages.estimates == []

    @pytest.mark.usefixtures("stages")
    def test_explain_shows_bytes_at_the_peak_in_place_of_the_short_list(self) -> None:
        result = xmem_fast("estimate", "trace.json", "--explain")
        assert "Bytes at the peak, by policy" in result.stdout
        assert "Corrected for CUDA" not in result.stdout

    def test_output_file(self, stages: FakeStages, tmp_path: Path) -> None:
        result = xmem_fast("estimate", "trace.json", "-o", str(tmp_path / "estimate.json"))
        assert result.stdout.startswith("Fits on")
        assert Estimate.from_json(json.loads((tmp_path / "estimate.json").read_text())) == stages.estimate

    @pytest.mark.usefixtures("stages")
    def test_output_file_that_cannot_be_written(self, tmp_path: Path) -> None:
        result = xmem_fast("estimate", "trace.json", "-o", str(tmp_path))
        assert result.exit_code == 2
        assert f"-o {tmp_path} cannot be written (Is a directory)" in result.stderr
        assert result.stdout.startswith("Fits on")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--gpu", "rtx3060ti"], r"unknown GPU 'rtx3060ti'; did you mean rtx-3060"),
            (
                ["--gpu", "a100"],
                r"'a100' is ambiguous: several names begin with it; use one of a100-40gb, a100-80gb",
            ),
            (["--capacity", "banana"], r"'banana' is not a size; write it like 11.5GiB"),
            (["--capacity", "1MiB"], r"a capacity of 1.00 MiB is too small; use more than"),
        ],
    )
    def test_bad_setting(self, stages: FakeStages, arguments: list[str], message: str) -> None:
        result = xmem_fast("estimate", "trace.json", *arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stdout == ""
        assert stages.estimates == []

    def test_bad_trace(self, stages: FakeStages) -> None:
        stages.error = TraceError("the file is cut off; copy it again", "trace.json", 1234)
        result = xmem_fast("estimate", "trace.json", "--json")
        assert result.exit_code == 3
        assert result.stderr == "xmem-fast: trace.json, byte 1,234: the file is cut off; copy it again\n"
        assert result.stdout == ""

    @pytest.mark.parametrize("command", ["estimate", "advise"])
    def test_an_estimate_is_no_trace(self, command: str, tmp_path: Path) -> None:
        file = tmp_path / "estimate.json"
        file.write_text(json.dumps(FITS.to_json()))
        result = xmem_fast(command, str(file))
        assert result.exit_code == 3
        assert f"an estimate, not a trace; show it with `xmem-fast report {file}`" in result.stderr


def test_a_named_pipe_is_read_from_its_beginning(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for command in ("estimate", "diff", "report"):
        others = {"diff": [str(training().write(tmp_path / "trace.json"))], "report": ["--format", "tree"]}
        writer = threading.Thread(target=pipe.write_bytes, args=(training().bytes(),))
        writer.start()
        result = xmem_fast(command, str(pipe), *others.get(command, []))
        writer.join()
        assert (result.exit_code, result.stderr) == (0, "")


class TestRun:
    @pytest.mark.parametrize("option", ["-o", "--html"])
    def test_places_of_files_are_checked_before_the_script_runs(
        self, option: str, stages: FakeStages, tmp_path: Path
    ) -> None:
        for place, says in (
            (tmp_path, " is a directory; name a file"),
            (
                tmp_path / "no" / "file",
                f" cannot be written: there is no folder {tmp_path / 'no'}; create it",
            ),
        ):
            result = xmem_fast("run", option, str(place), "--", *SCRIPT)
            assert result.exit_code == 2
            assert f"{option} {place}{says}" in result.stderr
        assert stages.captures == []

    def test_captures_then_estimates(self, stages: FakeStages) -> None:
        result = xmem_fast("run", "--gpu", "rtx-3060", "--", *SCRIPT, "--lr", "0.1")
        assert result.exit_code == 0
        assert result.stdout.startswith("Fits on RTX 3060 12 GB")
        assert "Timings       capture 12.5 s, read 125.0 ms" in result.stdout
        assert (
            result.stderr == "xmem-fast: recording 3 iterations on the CPU, which computes nothing; "
            "the script's own output follows\n"
        )
        [capture] = stages.captures
        assert capture["command"] == [*SCRIPT, "--lr", "0.1"]
        assert (capture["extent"], capture["timeout_s"], capture["stacks"]) == (Extent(3), None, False)
        assert capture["stdout"] is None
        assert stages.estimates[0]["trace"] == capture["output"]
        assert not Path(capture["output"]).parent.exists()

    @pytest.mark.parametrize(
        "command",
        [
            ["python", "-m", "train", "--help", "--gpu", "none", "--json", "-o", "x"],
            ["torchrun", "--nproc-per-node=1", "train.py", "--", "--version"],
            ["sh", "-c", "python train.py && true"],
        ],
    )
    def test_the_command_is_passed_untouched(self, stages: FakeStages, command: list[str]) -> None:
        assert xmem_fast("run", "--", *command).exit_code == 0
        assert stages.captures[0]["command"] == command

    def test_options_reach_the_capture(self, stages: FakeStages, tmp_path: Path) -> None:
        kept = tmp_path / "kept.json"
        result = xmem_fast(
            *["run", "--iterations", "5", "--timeout", "60", "--stacks", "--keep-trace", str(kept), "--json"],
            *["--", *SCRIPT],
        )
        [capture] = stages.captures
        assert (capture["extent"], capture["timeout_s"], capture["stacks"]) == (Extent(5), 60.0, True)
        assert capture["stdout"] == 2  # what the script prints must not come before the JSON
        assert kept.exists()
        assert json.loads(result.stdout)["trace"]["path"] == str(kept)
        assert next(iter(json.loads(result.stdout)["timings_s"])) == "capture"

    def test_path_of_a_trace_that_was_not_kept_is_empty(self, stages: FakeStages) -> None:
        stages.estimate = DOES_NOT_FIT
        result = xmem_fast("run", "--json", "--", *SCRIPT)
        assert result.exit_code == 1
        assert json.loads(result.stdout)["trace"]["path"] == ""

    def test_settings_are_checked_before_the_capture(self, stages: FakeStages) -> None:
        assert xmem_fast("run", "--gpu", "rtx-3061", "--", *SCRIPT).exit_code == 2
        assert stages.captures == []

    def test_failed_script(self, stages: FakeStages) -> None:
        stages.error = CaptureError("the script failed; run it without xmem-fast", 7, "KeyError: 'loss'")
        result = xmem_fast("run", "--", *SCRIPT)
        assert result.exit_code == 3
        assert "xmem-fast: the script failed; run it without xmem-fast\n" in result.stderr
        assert result.stderr.endswith("The script's last output:\nKeyError: 'loss'\n")
        assert not Path(stages.captures[0]["output"]).parent.exists()

    def test_interrupt(self, stages: FakeStages) -> None:
        stages.error = KeyboardInterrupt()
        assert xmem_fast("run", "--", *SCRIPT).exit_code == 130

    @pytest.mark.usefixtures("stages")
    @pytest.mark.parametrize(
        "options", [[], ["--"], ["--gpus", "x", "--", "true"], ["--iterations", "0", "--", "true"]]
    )
    def test_usage(self, options: list[str]) -> None:
        result = xmem_fast("run", *options)
        assert result.exit_code == 2
        assert "Error: " in result.stderr
        assert "\u2500" not in result.stderr


CUDA = TorchBuild("python", "2.12.0+cu130", "13.0")
CPU = TorchBuild("python", "2.13.0+cpu", None)


class TestMode:
    @pytest.mark.parametrize(
        ("torch", "has_gpu", "options", "mode"),
        [
            (CUDA, False, [], "phantom"),
            (CUDA, True, [], "fake"),
            (CUDA, True, ["--no-gpu"], "phantom"),
            (CUDA, True, ["--mode", "phantom"], "phantom"),
            (CUDA, False, ["--mode", "real"], "real"),
            (CUDA, False, ["--mode", "fake"], "fake"),
            (CUDA, False, ["--gpu", "mi300x"], "fake"),
            (CPU, False, [], "fake"),
            (None, False, [], "fake"),
        ],
    )
    def test_phantom_where_it_can(
        self, stages: FakeStages, torch: TorchBuild | None, has_gpu: bool, options: list[str], mode: str
    ) -> None:
        stages.torch, stages.machine_has_gpu = torch, has_gpu
        result = xmem_fast("run", *options, "--", *SCRIPT)
        assert result.exit_code == 0, result.stderr
        assert stages.captures[0]["mode"] == mode
        assert ("on a phantom RTX 3060 12 GB" in result.stderr) == (mode == "phantom")

    @pytest.mark.parametrize("torch", [CPU, None])
    def test_phantom_needs_a_cuda_build(self, stages: FakeStages, torch: TorchBuild | None) -> None:
        stages.torch = torch
        result = xmem_fast("run", "--mode", "phantom", "--", *SCRIPT)
        assert result.exit_code == 2
        found = "no torch was found" if torch is None else f"{torch.python} has torch {torch.version}"
        assert (
            f"--mode phantom needs a CUDA build of torch, but {found}; name a Python that has one"
            in result.stderr
        )
        assert stages.captures == []

    def test_options_describe_the_world(self, stages: FakeStages) -> None:
        stages.torch = CUDA
        named = xmem_fast(
            "run", "--world-size", "1024", "--ranks", "7,0", "--gpus-per-node", "4", "--", "train.py"
        )
        launched = xmem_fast("run", "--ranks", "auto", "--", "torchrun", "--nproc-per-node", "8", "train.py")
        assert (named.exit_code, launched.exit_code) == (0, 0), named.stderr
        worlds = [capture["world"] for capture in stages.captures]
        assert worlds == [World(1024, (0, 7), 4), World(8, (0, 7), 8, is_chosen=True)]
        wrong = xmem_fast("run", "--ranks", "3", "--", "train.py")
        assert wrong.exit_code == 2
        assert "add --world-size" in wrong.stderr

    def test_options_describe_the_machine(self, stages: FakeStages, tmp_path: Path) -> None:
        stages.torch = CUDA
        options = [
            "--gpu",
            "rtx-4090",
            "--capacity",
            "20GiB",
            "--gpus",
            "4",
            "--strict-capacity",
            "--keep-init",
            "--compile-cache",
            str(tmp_path / "cache"),
        ]
        options += [
            "--value",
            "train.py:7=0.5",
            "--snapshot",
            str(tmp_path / "s"),
            "--alloc-conf",
            "backend:native",
        ]
        result = xmem_fast("run", *options, "--python", "/env/bin/python", "--", "train.py")
        assert result.exit_code == 0, result.stderr
        [capture] = stages.captures
        assert capture["command"] == ["/env/bin/python", "train.py"]
        assert capture["env"]["PYTORCH_CUDA_ALLOC_CONF"] == "backend:native"
        machine = capture["machine"]
        assert (machine.device.full_name, machine.device.total_memory_bytes) == (
            "NVIDIA GeForce RTX 4090",
            20 << 30,
        )
        assert (machine.count, machine.strict_capacity, machine.keep_init) == (4, True, True)
        assert machine.compile_cache == tmp_path / "cache"
        assert (machine.values, machine.snapshot) == ({"train.py:7": 0.5}, tmp_path / "s")

    def test_what_was_refused_is_named(self, stages: FakeStages, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(xmem.phantom.ledger, "functions", lambda: {"cuA": "refused", "cuB": "faithful"})
        stages.torch = CUDA
        stages.processes = (ProcessRecord(1, "cuB", 0, {}, {"cuA": 2, "cuB": 1}),)
        assert (
            "the phantom GPU refused cuA; the script continued without them"
            in xmem_fast("run", "--", *SCRIPT).stderr
        )


class TestCapture:
    def test_says_where_the_trace_is(self, stages: FakeStages, tmp_path: Path) -> None:
        trace = tmp_path / "trace.json"
        result = xmem_fast("capture", "-o", str(trace), "--", *SCRIPT)
        assert (result.exit_code, result.stdout) == (0, f"{trace}: 3 iterations in 12.5 s\n")
        assert stages.captures[0]["output"] == trace

    @pytest.mark.usefixtures("stages")
    def test_json(self, tmp_path: Path) -> None:
        result = xmem_fast("capture", "--json", "-o", str(tmp_path / "t.json"), "--", *SCRIPT)
        assert json.loads(result.stdout) == {
            "schema_version": 1,
            "path": str(tmp_path / "t.json"),
            "iterations": 3,
            "wall_s": 12.5,
            "exit_status": 0,
            "metadata": {"format": 1},
        }

    def test_notes_a_short_run(self, stages: FakeStages, tmp_path: Path) -> None:
        stages.iterations = 2
        result = xmem_fast("capture", "-o", str(tmp_path / "t.json"), "--", *SCRIPT)
        assert "the script ended after 2 of 3 iterations" in result.stderr

    @pytest.mark.usefixtures("stages")
    def test_needs_an_output(self) -> None:
        result = xmem_fast("capture", "--", *SCRIPT)
        assert result.exit_code == 2
        assert "Missing option '--output'" in result.stderr or "Missing option '-o'" in result.stderr


class TestGpus:
    def test_text(self) -> None:
        result = xmem_fast("gpus")
        assert result.exit_code == 0
        header, *rows = result.stdout.splitlines()
        assert header.split() == ["name", "GPU", "architecture", "memory", "usable"]
        assert "rtx-3060           RTX 3060 12 GB           Ampere        11.76 GiB   11.61 GiB" in rows
        assert max(map(len, result.stdout.splitlines())) <= 80

    def test_json(self) -> None:
        known = {gpu["slug"]: gpu for gpu in json.loads(xmem_fast("gpus", "--json").stdout)["gpus"]}
        assert known["rtx-3060"]["total_memory_bytes"] == 12_622_168_064
        assert known["rtx-3060"]["compute_capability"] == [8, 6]
        assert known["h100"]["total_memory_basis"] == "measured"
        assert known["h200"]["total_memory_basis"] == "measured"
        assert known["mi300x"]["vendor"] == "AMD"

    def test_one_gpu_is_a_file_that_gpu_takes(self, tmp_path: Path) -> None:
        described = xmem_fast("gpus", "RTX 3060")
        assert described.exit_code == 0
        file = tmp_path / "my-gpu.toml"
        file.write_text(described.stdout)
        assert xmem_fast("gpus", str(file)).stdout == described.stdout

    def test_one_gpu_as_json(self) -> None:
        gpu = json.loads(xmem_fast("gpus", "rtx-3060", "--json").stdout)["gpu"]
        assert gpu["multiprocessors"] == 28
        assert gpu["attributes"]["L2CacheSize"] == {"value": 2_359_296, "basis": "reported"}

    def test_unknown_gpu(self) -> None:
        unknown = xmem_fast("gpus", "rtx-3061")
        assert unknown.exit_code == 2
        assert "rtx-3060" in unknown.stderr


class TestTarget:
    """What names the target is checked before anything is recorded."""

    @pytest.mark.parametrize(
        "wrong",
        [
            ("--alloc-conf", "no_such_key:1"),
            ("--torch", "1.4"),
            ("--gpu", "abacus"),
            ("--capacity", "bananas"),
        ],
    )
    def test_run_refuses_at_once(self, stages: FakeStages, wrong: tuple[str, str]) -> None:
        result = xmem_fast("run", *wrong, "--", *SCRIPT)
        assert result.exit_code == 2
        assert wrong[1].partition(":")[0] in result.stderr
        assert stages.captures == []


class TestInspect:
    """One training step: in module Net, aten::relu twice, the second of which owns two of the four blocks."""

    @pytest.fixture(autouse=True)
    def _small_trace(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (
            TraceBuilder()
            .module("Net", 0, 100)
            .line("model.py", 41, 0, 100)
            .alloc(0x1000, 512, 5)
            .operator("aten::relu", 10, 15, sequence_number=7)
            .operator("aten::relu", 20, 25, sequence_number=8)
            .alloc(0x2000, 1024, 21)
            .alloc(0x3000, 2048, 22)
            .operator("aten::add", 30, 35)
            .free(0x1000, 50)
            .free(0x3000, 60)
            .annotation("Optimizer.step#SGD.step", 110, 120)
            .write(Path("trace.json"))
        )

    def rows(self, table: str, *options: str) -> list[dict[str, Any]]:
        result = xmem_fast("inspect", "trace.json", table, "--json", *options)
        assert result.exit_code == 0
        data = json.loads(result.stdout)
        assert (data["schema_version"], data["table"]) == (1, table)
        rows: list[dict[str, Any]] = data["rows"]
        return rows

    def test_events(self) -> None:
        assert self.rows("events")[2] == {
            "begin_ns": 10_000,
            "duration_ns": 5_000,
            "thread": 0,
            "kind": "operator",
            "sequence_number": 7,
            "name": "aten::relu",
        }

    def test_operators_by_bytes(self) -> None:
        assert self.rows("operators") == [
            {"calls": 2, "blocks": 2, "allocated_bytes": 3072, "name": "aten::relu"},
            {"calls": 1, "blocks": 0, "allocated_bytes": 0, "name": "aten::add"},
        ]

    def test_blocks(self) -> None:
        outside, kept, _ = self.rows("blocks")
        assert (outside["operator"], outside["module"], outside["phase"]) == (None, "Net", "forward")
        assert kept == {
            "size_bytes": 1024,
            "alloc_ns": 21_000,
            "free_ns": -1,
            "device_type": 0,
            "category": "activation",
            "iteration": 0,
            "phase": "forward",
            "operator": "aten::relu",
            "module": "Net",
            "source_line": "model.py:41",
        }

    def test_sequence(self) -> None:
        rows = self.rows("sequence")
        assert [(row["request"], row["block"]) for row in rows] == [
            ("alloc", 0),
            ("alloc", 1),
            ("alloc", 2),
            ("free", 0),
            ("free", 2),
        ]
        assert [row["allocated_bytes"] for row in rows] == [512, 1536, 3584, 3072, 1024]

    def test_segments(self) -> None:
        (segment,) = self.rows("segments")
        assert (segment["size_bytes"], segment["pool"], segment["blocks"]) == (2 << 20, "small", 1)
        assert segment["allocated_bytes"] == 1024

    def test_limit(self) -> None:
        assert len(self.rows("events", "--limit", "2")) == 2
        result = xmem_fast("inspect", "trace.json", "events", "--limit", "1")
        assert result.stdout == (
            "begin_ns  duration_ns  thread  kind    sequence_number  name\n"
            "       0      100,000       0  module               -1  Net\n"
        )
        assert result.stderr == "xmem-fast: 6 rows, 5 not shown; raise --limit\n"

    def test_unknown_table(self) -> None:
        result = xmem_fast("inspect", "trace.json", "tensors")
        assert result.exit_code == 2
        assert "'operators'" in result.stderr


class TestProcess:
    """What only a process of its own shows."""

    # Unbuffered, Python loses what a closed pipe did not take without an error.
    ENVIRONMENT: ClassVar = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=self.ENVIRONMENT,
        )

    def xmem_fast(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "xmem.cli.main", *arguments)

    def test_help(self) -> None:
        process = self.xmem_fast("--help")
        assert process.returncode == 0
        for command in ("run", "capture", "estimate", "gpus", "inspect", "replay", "tune", "report"):
            assert f"\n  {command} " in process.stdout

    def test_version(self) -> None:
        try:
            version = metadata.version("xmem-fast")
        except metadata.PackageNotFoundError:
            pytest.skip("the package is not installed: pip install -e .")
        assert self.xmem_fast("--version").stdout == f"xmem-fast {version}\n"

    def test_unknown_command_suggests(self) -> None:
        process = self.xmem_fast("estimat")
        assert process.returncode == 2
        assert "Did you mean 'estimate'?" in process.stderr

    def test_pipe_has_no_colours(self) -> None:
        assert "\x1b" not in self.xmem_fast("gpus").stdout

    def test_closed_pipe_is_silent(self) -> None:
        # More than a pipe holds, so that writing meets the closed end.
        script = (
            "import xmem.cli.commands.gpus as gpus; gpus.format_table = lambda rows: 'x\\n' * 1_000_000\n"
            "from xmem.cli.main import main; main()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, "gpus"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.ENVIRONMENT,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "x\n"
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(timeout=30) == 141

    def test_a_fault_of_ours_is_no_verdict(self) -> None:
        script = "import xmem.cli.commands.gpus as gpus; gpus.devices = lambda: 1 / 0\n"
        process = self.run("-c", script + "from xmem.cli.main import main; main()", "gpus")
        assert process.returncode == 70
        assert "ZeroDivisionError" in process.stderr
        assert "please report it" in process.stderr

    def test_help_is_fast_because_it_imports_little(self) -> None:
        script = """if True:
            import sys
            from xmem.cli.main import main
            try:
                main()
            except SystemExit:
                print([name for name in ("torch", "numpy", "rich") if name in sys.modules], file=sys.stderr)
        """
        assert self.run("-c", script, "--help").stderr == "[]\n"


class TestPolicies:
    def test_lists_all_in_order_with_the_traces_that_they_are_for(self) -> None:
        lines = xmem_fast("policies").stdout.splitlines()
        assert lines[0].split() == ["name", "traces", "package", "description"]
        assert lines[1].split()[:3] == ["drop_host_memory", "CPU", "xmem"]
        assert any(line.split()[:2] == ["recorded_requests", "GPU"] for line in lines)

    def test_one_says_how_it_is_known(self) -> None:
        result = xmem_fast("policies", "add_cublas_workspaces")
        assert "CublasHandlePool.cpp" in result.stdout

    def test_json_has_the_documentation(self) -> None:
        rows = json.loads(xmem_fast("policies", "--json").stdout)["policies"]
        assert list(rows[0]) == ["name", "traces", "package", "description", "documentation"]
        assert all(row["documentation"] for row in rows)

    def test_an_unknown_name_is_a_usage_error(self) -> None:
        assert xmem_fast("policies", "add_cublas").exit_code == 2


@pytest.mark.parametrize("option", [("--behind",), ("--compile-cache", "cache")])
@pytest.mark.parametrize("command", [("run",), ("capture", "-o", "trace.json")])
def test_what_is_about_the_phantom_needs_one(command: tuple[str, ...], option: tuple[str, ...]) -> None:
    result = xmem_fast(*command, *option, "--mode", "fake", "--", sys.executable, "train.py")
    assert result.exit_code == 2
    assert f"{option[0]} needs a phantom GPU" in result.stderr


@pytest.mark.parametrize("words", [["train.py"], ["--python", sys.executable, "--", "train"]])
def test_occupancy_takes_a_script_for_a_command(words: list[str], stages: FakeStages) -> None:
    stages.torch = CPU  # whatever is installed here
    result = xmem_fast("occupancy", *words)
    assert result.exit_code == 2
    assert "needs a CUDA build of torch" in result.stderr
