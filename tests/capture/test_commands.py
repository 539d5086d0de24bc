"""How commands are started, stopped and refused: a complete trace, or an error and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import xmem
from command_line import heed_interrupts
from nightly import most_nightly
from xmem.capture import capture
from xmem.errors import CaptureError, ConfigError

from .conftest import TARGETS, needs_torch, run_capture, shown

PYTHON = sys.executable


def target(name: str) -> list[str]:
    return [PYTHON, str(TARGETS / name)]


def fails(command: list[str], folder: Path, **options: float) -> CaptureError:
    with pytest.raises(CaptureError) as caught:
        capture(command, folder / "trace.json", **options)  # type: ignore[arg-type]
    assert list(folder.iterdir()) == []
    return caught.value


@needs_torch
def test_module_run_with_m(tmp_path: Path) -> None:
    run = run_capture(tmp_path, [PYTHON, "-m", "package"])
    assert run.xmem["modules"][0]["name"] == "Network"
    assert not run.xmem["optimizers"][0]["foreach"]  # the script says so


@needs_torch
def test_launcher_and_shell(tmp_path: Path) -> None:
    run = run_capture(tmp_path, ["sh", "-c", f"{PYTHON} processes/launcher.py && echo launched"])
    assert run.stdout == "a process without torch\ntraining on cuda\nlaunched\n"
    assert run.xmem["argv"] == [shown(TARGETS / "to_device.py")]


@needs_torch
def test_script_that_catches_everything(tmp_path: Path) -> None:
    run = run_capture(tmp_path, target("trouble/stubborn.py"))
    assert run.result.exit_status == 0
    assert run.stdout == "ignored\nignored\n"


@needs_torch
@pytest.mark.parametrize("script", most_nightly(["processes/replaced.py", "trouble/no_environment.py"]))
def test_what_a_process_does_to_itself(script: str, tmp_path: Path) -> None:
    """One goes on as another program, whose training is the one that counts; one clears its environment."""
    run = run_capture(tmp_path, target(script))
    assert run.result.iterations == 3
    assert run.xmem["optimizers"][0]["steps"] == 3


@needs_torch
def test_questions_about_the_gpu(tmp_path: Path) -> None:
    gpu = {"name": "Test GPU", "total_memory_bytes": 2**30, "capability": [8, 0], "multiprocessors": 108}
    run = run_capture(tmp_path, target("answers.py"), gpu=gpu)
    assert run.result.iterations == 3
    assert run.xmem["optimizers"][0]["fused"]
    # compiled eagerly, its own profiler off, memory in use unknown, what came later was not seen
    assert len(run.xmem["assumptions"]) == 4


@needs_torch
def test_training_in_a_thread(tmp_path: Path) -> None:
    run = run_capture(tmp_path, target("processes/threads.py"))
    assert run.stdout == "joined\n"
    assert run.stderr == ""
    assert run.result.iterations == 2


@needs_torch
def test_distributed_world_of_one(tmp_path: Path) -> None:
    run = run_capture(tmp_path, [*target("processes/distributed.py"), "1"])
    assert run.result.iterations == 3
    assert "torch.distributed ran with one process over gloo" in run.xmem["assumptions"]


@needs_torch
def test_distributed_world_of_two_is_refused(tmp_path: Path) -> None:
    assert "2 processes" in fails([*target("processes/distributed.py"), "2"], tmp_path).message


@needs_torch
def test_full_disk(tmp_path: Path) -> None:
    # A limit on the size of files stands for the full disk; it leaves room for the child's messages.
    error = fails(["sh", "-c", f"ulimit -f 100; {PYTHON} {TARGETS / 'to_device.py'}"], tmp_path)
    assert "could not be written" in error.message


@needs_torch
def test_killed_process(tmp_path: Path) -> None:
    code = "import os, torch; torch.zeros(1, device='cuda'); os.kill(os.getpid(), 9)"
    assert "signal 9" in fails([PYTHON, "-c", code], tmp_path).message


@needs_torch
def test_sitecustomize_of_the_user_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("print('customized')")
    output = tmp_path / "output"
    output.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    run = run_capture(output, target("plain_cpu.py"))
    assert run.stdout.count("customized") >= 1


@needs_torch
def test_script_that_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    error = fails(target("trouble/broken.py"), tmp_path)
    assert error.exit_status == 1
    assert "ValueError: the data is not there" in error.last_output
    assert "the script itself failed" in error.message
    assert "ValueError: the data is not there" in capfd.readouterr().err


@needs_torch
def test_script_that_never_trains(tmp_path: Path) -> None:
    run = run_capture(tmp_path, target("trouble/inference.py"))
    assert run.result.exit_status == 0
    assert (run.result.iterations, run.xmem["iteration_kind"]) == (1, "call")
    estimate = xmem.estimate(run.result.path)
    assert estimate.breakdown.category["parameter"] == 2 * 512
    assert estimate.peak.iteration == 0


@needs_torch
def test_script_that_calls_no_model(tmp_path: Path) -> None:
    error = fails([PYTHON, "-c", "import torch; torch.ones(4)"], tmp_path)
    assert error.exit_status == 0
    assert "no model call and no optimizer step" in error.message


def test_command_without_torch(tmp_path: Path) -> None:
    assert "never imported torch" in fails([PYTHON, "-c", "print(1)"], tmp_path).message


def test_python_without_torch(tmp_path: Path) -> None:
    error = fails([PYTHON, "-S", "-c", "import torch"], tmp_path)
    assert "has no torch" in error.message


def test_old_torch(tmp_path: Path) -> None:
    package = tmp_path / "old" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '1.13.1'")
    output = tmp_path / "output"
    output.mkdir()
    script = f"import sys; sys.path.insert(0, {str(package.parent)!r}); import torch"
    assert "1.13.1" in fails([PYTHON, "-c", script], output).message


@needs_torch
def test_timeout_ends_the_whole_command(tmp_path: Path) -> None:
    began = time.monotonic()
    error = fails(
        ["sh", "-c", f"{PYTHON} -c 'import time; time.sleep(60)'; echo done"], tmp_path, timeout_s=0.5
    )
    assert time.monotonic() - began < 10
    assert error.exit_status is None
    assert "0.5 s" in error.message


def test_interrupt_leaves_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    folder = tmp_path / "output"
    folder.mkdir()
    script = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = "import sys; from xmem.capture import capture; capture(sys.argv[2:], sys.argv[1])"
    parent = subprocess.Popen(
        [PYTHON, "-c", code, str(folder / "trace.json"), PYTHON, "-c", script],
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
    )
    while not (marker.exists() and marker.read_text()):
        time.sleep(0.02)
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=20)
    assert b"KeyboardInterrupt" in errors
    assert list(folder.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_command_not_found(tmp_path: Path) -> None:
    assert "command not found" in fails(["no-such-command"], tmp_path).message


def test_a_script_runs_with_python(tmp_path: Path) -> None:
    script, outputs = tmp_path / "train.py", tmp_path / "outputs"
    outputs.mkdir()
    script.write_text("print('here')")
    assert "never imported torch" in fails([str(script)], outputs).message
    script.unlink()
    assert "exit status 2" in fails([str(script)], outputs).message


def test_python_falls_back_to_this_one(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="never imported torch"):
        capture(["python", "-c", "pass"], tmp_path / "trace.json", env={"PATH": "/nonexistent"})


def test_output_is_checked_before_anything_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    command = [PYTHON, "-c", f"open({str(marker)!r}, 'w')"]
    with pytest.raises(CaptureError, match="does not exist"):
        capture(command, tmp_path / "missing" / "trace.json")
    with pytest.raises(CaptureError, match="is a folder"):
        capture(command, tmp_path)
    assert not marker.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_that_is_not_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CaptureError, match="not writable"):
        capture([PYTHON, "-c", "pass"], tmp_path / "trace.json")


def test_invalid_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        capture([PYTHON], tmp_path / "trace.json", iterations=0)
    with pytest.raises(ConfigError, match="no command was given"):
        capture([], tmp_path / "trace.json")
    with pytest.raises(ConfigError, match="real, fake, phantom"):
        capture([PYTHON], tmp_path / "trace.json", mode="cpu")  # type: ignore[arg-type]


def test_importing_the_package_leaves_torch_alone() -> None:
    code = "import sys, xmem.capture; sys.exit('torch' in sys.modules)"
    assert subprocess.run([PYTHON, "-c", code], check=False).returncode == 0


def test_output_that_is_no_regular_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CaptureError, match="not a regular file"):
        capture([sys.executable, "-c", "pass"], pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_script_and_leaves_nothing(tmp_path: Path, ending: signal.Signals) -> None:
    started = tmp_path / "started"
    script = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    command = [sys.executable, "-m", "xmem.cli.main", "capture", "-o", str(tmp_path / "trace.json")]
    with subprocess.Popen(
        [*command, "--", sys.executable, "-c", script, str(started)], stderr=subprocess.DEVNULL
    ) as process:
        while not (started.exists() and started.read_text()):
            time.sleep(0.05)
        process.send_signal(ending)
        assert process.wait(20) == 128 + ending
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert [path.name for path in tmp_path.iterdir()] == ["started"]
