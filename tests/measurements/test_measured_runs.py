"""Measured runs, their jobs and the machines that these found."""

from __future__ import annotations

from pathlib import Path

import pytest

from accuracy.runs import MIB, Job, read_runs
from xmem.devices.gpus import find_device
from xmem.validation.runs import IDENTITY

HEADER = "set,family,model,optimizer,batch_size,gpu,gpu_total_bytes,zero_grad_mode,nvml_peak_bytes,real_oom\n"
GPT2 = "one,Transformer,openai-community/gpt2,AdamW,27,NVIDIA GeForce RTX 4060,8318222336,1,1000,false\n"
VGG = "two,CNN,VGG16,SGD,400,NVIDIA GeForce RTX 3060,12622168064,null,2000,true\n"


def file_of(folder: Path, *rows: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(HEADER + "".join(rows))
    return path


def test_a_row_is_a_job_a_gpu_and_a_truth(tmp_path: Path) -> None:
    gpt2, vgg = read_runs(file_of(tmp_path, GPT2, VGG))
    assert gpt2.job == Job("Transformer", "openai-community/gpt2", "AdamW", 27, zero_grad=1)
    assert (gpt2.measured.peak_bytes, vgg.measured.out_of_memory) == (1000, True)
    assert tuple(vgg.identity) == IDENTITY
    assert vgg.identity["zero_grad_mode"] == "null"


@pytest.mark.parametrize("cell", ["", "null", "0"])
def test_a_mode_that_was_not_recorded_is_the_start_of_the_iteration(tmp_path: Path, cell: str) -> None:
    (run,) = read_runs(file_of(tmp_path, GPT2.replace(",1,1000", f",{cell},1000")))
    assert run.job.zero_grad == 0


def test_what_loads_on_the_way_is_part_of_the_context(tmp_path: Path) -> None:
    gpt2, vgg = read_runs(file_of(tmp_path, GPT2, VGG))
    assert (gpt2.loaded_bytes, vgg.loaded_bytes) == (14 * MIB, 26 * MIB)
    known = find_device("rtx-4060")
    assert gpt2.device.total_memory_bytes == 8318222336
    bare = known.context_bytes - known.loaded_kernels_bytes
    assert gpt2.device.context_bytes == bare + 14 * MIB


def test_either_adafactor_can_be_meant(tmp_path: Path) -> None:
    path = file_of(tmp_path, GPT2.replace("AdamW", "Adafactor"))
    assert read_runs(path)[0].job.optimizer == "transformers.Adafactor"
    assert read_runs(path, "Adafactor")[0].job.optimizer == "Adafactor"
    assert read_runs(path)[0].identity["optimizer"] == "Adafactor"


def test_jobs_that_differ_are_called_differently() -> None:
    job = Job("Transformer", "a/m", "SGD", 2)
    others = [
        job.at(3),
        Job("Transformer", "a/m", "SGD", 2, 1),
        Job("Transformer", "a/m", "SGD", 2, tokens=64),
    ]
    assert len({str(job), *map(str, others)}) == 4
