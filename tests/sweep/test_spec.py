"""What a spec means, and what is said of an invalid one."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmem.devices.gpus import describe_device, devices, find_device
from xmem.errors import ConfigError
from xmem.sweep import read_spec
from xmem.sweep.captures import CommandJob
from xmem.sweep.configuration import cut

COMMAND = 'command = ["python", "train.py", "-b", "{batch}", "-s", "{seq}"]\n'


def test_every_combination_of_grid_zip_and_list_is_a_configuration(write_spec) -> None:
    spec = read_spec(
        write_spec("""
        [grid]
        gpu = ["RTX 3060", "24GiB"]
        torch = ["2.6", "2.13"]
        [zip]
        batch = [2, 4, 8]
        seq = [64, 32, 16]
        [[list]]
        alloc_conf = ""
        [[list]]
        alloc_conf = "expandable_segments:True"
        """)
    )
    assert spec.dimensions == ("batch", "seq")
    assert len(spec.configurations) == 2 * 2 * 3 * 2
    assert [each.number for each in spec.configurations] == list(range(24))
    rows = [
        (each.alloc_conf, each.point["batch"], each.point["seq"], each.gpu, each.torch_version)
        for each in spec.configurations
    ]
    assert len(set(rows)) == 24
    assert rows[:3] == [
        ("", 2, 64, "rtx-3060", "2.6"),
        ("", 2, 64, "rtx-3060", "2.13"),
        ("", 2, 64, "24GiB", "2.6"),
    ]
    assert {(batch, seq) for _, batch, seq, *_ in rows} == {(2, 64), (4, 32), (8, 16)}


def test_gpus_by_name_size_file_and_all_of_them(write_spec, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(describe_device(find_device("rtx-3090")))
    spec = read_spec(write_spec('[grid]\ngpu = ["mine.toml", "11.5 GiB", 8000000000, "all"]'))
    mine, sized, counted, *known = (each.device for each in spec.configurations)
    assert mine is not None
    assert mine.total_memory_bytes == find_device("rtx-3090").total_memory_bytes
    assert sized is not None
    assert sized.total_memory_bytes == int(11.5 * 2**30)
    assert counted is not None
    assert counted.total_memory_bytes == 8_000_000_000
    assert known == list(devices())


def test_a_single_value_is_a_list_of_one_and_what_is_left_out_is_the_recorded_runs(write_spec) -> None:
    (only,) = read_spec(write_spec("[grid]\nbatch = 4")).configurations
    assert only.point == {"batch": 4}
    assert (only.what_if, only.alloc_conf, only.torch_version, only.gpu) == ("", None, None, None)


def test_a_command_of_which_some_ranks_run(write_spec) -> None:
    world = "world_size = 1024\nranks = [0, 127]\ngpus_per_node = 4"
    command = COMMAND + "fit = { batch = [2, 3], seq = [1, 2] }\n" + world
    job = read_spec(write_spec("[grid]\nbatch = 2\nseq = 2", command)).job
    assert isinstance(job, CommandJob)
    assert (job.world_size, job.ranks, job.gpus_per_node) == (1024, "0,127", 4)


@pytest.mark.parametrize(
    ("gpus", "seen"),
    [('["24GiB", "h100", "t4"]', "h100"), ('["24GiB", "8GiB"]', "24GiB"), (None, None)],
)
def test_a_command_sees_the_first_gpu_of_the_sweep(write_spec, gpus: str | None, seen: str | None) -> None:
    table = "[grid]" if gpus is None else f"[grid]\ngpu = {gpus}"
    spec = read_spec(write_spec(table, 'command = ["python", "train.py"]'))
    assert isinstance(spec.job, CommandJob)
    assert spec.job.device == {each.gpu: each.device for each in spec.configurations}.get(seen)


def test_a_command_with_the_points_of_its_fit(write_spec) -> None:
    job = COMMAND + "fit = { batch = [2, 3], seq = [64, 96] }\niterations = 2\nmode = 'real'"
    spec = read_spec(write_spec("[grid]\nbatch = 9\nseq = 128", job))
    assert isinstance(spec.job, CommandJob)
    assert [tuple(point.values()) for point in spec.job.points] == [(2, 64), (2, 96), (3, 64), (3, 96)]
    assert (spec.job.iterations, spec.job.mode) == (2, "real")


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ("[gird]\nbatch = 2", "[gird]"),
        ("[grid]\nbatch = []", "at least one value"),
        ("[grid]\nbatch = [2, 'x']", "batch = 'x'"),
        ("[grid]\nbatch = true", "whole numbers above 0"),
        ("[grid]\nbatch = -1", "whole numbers above 0"),
        ("[grid]\nbatch = 2.5", "whole numbers above 0"),
        ("[grid]\ngpu = 'abacus'", "abacus"),
        ("[grid]\ngpu = 'missing.toml'", "missing.toml"),
        ("[grid]\ngpu = '1MiB'", "CUDA context"),
        ("[grid]\nalloc_conf = 3", "alloc_conf = 3"),
        ("[grid]\nalloc-conf = 'x'", "alloc-conf"),
        ("[grid]\nerror = 3", "error"),
        ("[grid]\nwhat_if = 'optimizer=magic'", "optimizer 'magic'"),
        ("[grid]\nbatch = 2\n[zip]\nbatch = [3]", "batch appears in two tables"),
        ("[zip]\nbatch = [2, 3]\nseq = [4]", "2 of batch, 1 of seq"),
        ("[[list]]\nbatch = 2\n[[list]]\nseq = 2", "the same keys in every entry"),
        ("list = 3\n", "[[list]]"),
        (f"[grid]\na = {list(range(1, 1002))}\nb = {list(range(1, 1002))}", "1,002,001 configurations"),
    ],
)
def test_what_is_invalid_is_named(write_spec, tables: str, says: str) -> None:
    path = write_spec("", "") if tables.startswith("list =") else write_spec(tables)
    if tables.startswith("list ="):
        path.write_text(tables + path.read_text() + "model = 'm.xmem'\n")
    with pytest.raises(ConfigError) as raised:
        read_spec(path)
    assert says in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ("", "set one of model = FILE"),
        ("model = 'a'\ntrace = 'b'", "set one of model = FILE"),
        ("model = 3", "model = 3"),
        ("model = 'a'\niterations = 2", "keep only model = FILE"),
        ("command = 'python train.py'", "is not a list of arguments"),
        ("command = ['python']\nfits = 3", "fits"),
        (COMMAND + "fit = { batch = [2] }", "use two or more different values"),
        (COMMAND + "fit = { batch = [2, 2] }", "use two or more different values"),
        (COMMAND + "fit = { batch = [2, 'x'] }", "whole numbers"),
        (COMMAND + "fit = { batch = [2, 3], heads = [2, 3] }", "{heads}"),
        (COMMAND + "fit = { batch = [2, 3], seq = [1, 2] }\nmode = 'dream'", "dream"),
        (COMMAND + "fit = { batch = [2, 3], seq = [1, 2] }\niterations = 0", "iterations = 0"),
        (COMMAND + "fit = { batch = [2, 3], seq = [1, 2] }\ntimeout_s = -1", "timeout_s = -1"),
        (COMMAND + "fit = { batch = [2, 3], seq = [1, 2] }", "but fit has batch, seq"),
        (COMMAND + "fit = { batch = [2, 3] }\nworld_size = 0", "world_size = 0"),
        (COMMAND + "fit = { batch = [2, 3] }\nranks = ['first']", "ranks = ['first']"),
    ],
)
def test_an_invalid_job_is_named(write_spec, job: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_spec(write_spec("[grid]\nbatch = 2", job))
    assert says in str(raised.value)


@pytest.mark.parametrize("content", [None, b"[grid", b"\xff\xfe"])
def test_a_file_that_cannot_be_read(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"spec\.toml"):
        read_spec(path)


def test_chunks_hold_every_configuration_once_and_keep_shared_work_together(write_spec) -> None:
    spec = read_spec(
        write_spec(
            "[grid]\nalloc_conf = ['', 'max_split_size_mb:64']\ngpu = ['t4', 'h100']\nbatch = [1, 2, 3]"
        )
    )
    chunks = cut(reversed(spec.configurations), workers=1, largest=3)
    assert sorted(each.number for chunk in chunks for each in chunk) == list(range(12))
    assert all(len(chunk) <= 3 for chunk in chunks)
    batches = [each.point["batch"] for chunk in chunks for each in chunk]
    assert batches == sorted(batches)
