"""``xmem-fast fit``, ``max-batch`` and ``estimate --at`` as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import xmem_fast
from scaling.models import run_at, scratch
from training_sample import MIB


@pytest.fixture
def traces(tmp_path: Path) -> dict[int, str]:
    return {
        batch: f"{run_at(batch).write(tmp_path / f'{batch}.json.gz')}@batch={batch}" for batch in (2, 3, 8, 9)
    }


@pytest.fixture
def model(traces: dict[int, str], tmp_path: Path) -> Path:
    result = xmem_fast("fit", "-o", tmp_path / "model.xmem", traces[2], traces[3])
    assert (result.exit_code, result.stderr) == (0, "")
    return tmp_path / "model.xmem"


def test_fit_says_what_it_found_and_checks_it(traces: dict[int, str], tmp_path: Path) -> None:
    result = xmem_fast("fit", "-o", tmp_path / "m.xmem", traces[2], traces[3], "--check", traces[8])
    assert result.exit_code == 0
    assert "m.xmem: fitted from batch=2; batch=3" in result.stdout
    assert "9 blocks: 9 sizes checked by the runs" in result.stdout
    assert "checked at batch=8: 22.00 MiB against 22.00 MiB captured (+0.00%); 9 of 9 blocks" in result.stdout


def test_a_check_that_differs_is_exit_status_1(traces: dict[int, str], tmp_path: Path) -> None:
    wrong = traces[9].replace("batch=9", "batch=8")
    result = xmem_fast("fit", "-o", tmp_path / "m.xmem", traces[2], traces[3], "--check", wrong, "--json")
    assert result.exit_code == 1
    (check,) = json.loads(result.stdout)["checks"]
    assert check["at"] == {"batch": 8}
    assert check["captured_peak_reserved_bytes"] == 42 * MIB
    assert check["relative_error"] == pytest.approx(22 / 42 - 1)


def test_fit_names_what_the_runs_do_not_have_in_common(tmp_path: Path) -> None:
    grows = scratch(lambda batch: 40 * MIB if batch > 2 else 0)
    files = [f"{run_at(b, grows).write(tmp_path / f'{b}.json')}@batch={b}" for b in (2, 3)]
    result = xmem_fast("fit", "-o", tmp_path / "m.xmem", *files)
    assert result.exit_code == 0
    assert "1 blocks of aten::linear in Net.fc, 40.00 MiB: not in every run" in result.stdout
    answer = xmem_fast("estimate", tmp_path / "m.xmem", "--at", "batch=6").stdout
    assert "22.00 MiB to" in answer


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{2}"], "at least two, at different points"),
        (["nowhere.json@batch=2", "{3}"], "'nowhere.json@batch=2' does not name an existing trace"),
        (["{2}", "{3}", "--check", "batch=8"], "or pass --dim and a command to run"),
        (["--dim", "batch=2", "--", "python", "train.py"], r"does not use {batch}: python train.py"),
        (["--dim", "batch=2,3", "--dim", "batch=4", "--", "x"], "each dimension once"),
    ],
)
def test_runs_that_make_no_model(
    arguments: list[str], says: str, traces: dict[int, str], tmp_path: Path
) -> None:
    named = {f"{{{batch}}}": text for batch, text in traces.items()}
    result = xmem_fast("fit", "-o", tmp_path / "m.xmem", *[named.get(text, text) for text in arguments])
    assert result.exit_code == 2
    assert says in result.stderr


def test_estimate_at_a_point(model: Path) -> None:
    result = xmem_fast("estimate", model, "--at", "batch=100", "--gpu", "rtx-3060", "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert answer["scaling"]["at"] == {"batch": 100}
    assert answer["scaling"]["fitted_from"] == [{"batch": 2}, {"batch": 3}]
    assert answer["peak_allocated_bytes"] > 100 * MIB
    text = xmem_fast("estimate", model, "--at", "batch=100").stdout
    assert "At            batch=100, fitted from batch=2; batch=3" in text


def test_models_need_a_point_and_traces_have_none(model: Path, traces: dict[int, str]) -> None:
    result = xmem_fast("estimate", model)
    assert result.exit_code == 2
    assert "needs --at; pass its dimensions, such as --at batch=3" in result.stderr
    result = xmem_fast("estimate", traces[2].partition("@")[0], "--at", "batch=4")
    assert result.exit_code == 2
    assert "make one with 'xmem-fast fit'" in result.stderr


def test_max_batch_for_several_gpus(model: Path) -> None:
    result = xmem_fast("max-batch", model, "--gpu", "rtx-3060", "--gpu", "a100-40gb", "--json")
    assert result.exit_code == 0
    small, large = json.loads(result.stdout)["gpus"]
    assert (small["gpu"], large["gpu"]) == ("rtx-3060", "a100-40gb")
    assert 3000 < small["value"] < large["value"] <= large["bound"]
    assert small["need"]["device_peak_bytes"] <= small["capacity_bytes"]


def test_max_batch_tells_of_smaller_values_that_do_not_fit(model: Path) -> None:
    result = xmem_fast("max-batch", model, "--capacity", "297MiB", "--curve", "18")
    assert result.exit_code == 0
    assert "18" in result.stdout.splitlines()[1]
    assert "but not 9, 10, 11, 12, 13" in result.stdout
    assert "less than the line above" in result.stdout


def test_max_batch_where_nothing_fits(model: Path, tmp_path: Path) -> None:
    assert xmem_fast("max-batch", model, "--capacity", "270MiB").exit_code == 1
    assert xmem_fast("max-batch", model).exit_code == 2
    (tmp_path / "other").write_text("{}")
    result = xmem_fast("max-batch", tmp_path / "other", "--gpu", "rtx-3060")
    assert result.exit_code == 3
    assert "not a fitted model" in result.stderr
