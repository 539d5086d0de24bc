"""Every executor gives the rows that threads of this process give."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sweep_results import rows_of
from xmem.errors import ConfigError, TraceError
from xmem.sweep import read_spec, run_sweep
from xmem.sweep.configuration import Chunk
from xmem.sweep.evaluate import Finished
from xmem.sweep.executors import Executor
from xmem.sweep.executors import ray as ray_executor
from xmem.sweep.executors.local import LocalExecutor
from xmem.sweep.executors.ray import RayExecutor
from xmem.sweep.executors.slurm import SlurmExecutor
from xmem.sweep.sweep_job import JobFile

GRID = """
[grid]
batch = [1, 2, 3, 4, 5, 6, 7, 8]
alloc_conf = ["", "expandable_segments:True", "speed:11"]
gpu = ["t4", "h100", "300MiB"]
"""


def rows(spec: Path, output: Path, executor: Executor) -> list[dict[str, Any]]:
    def capture(*_arguments: object) -> None:
        raise AssertionError

    run_sweep(read_spec(spec), output, executor=executor, capture=capture)
    return rows_of(output)


@pytest.fixture
def expected(write_spec: Callable[..., Path], tmp_path: Path) -> list[dict[str, Any]]:
    found = rows(write_spec(GRID), tmp_path / "local.jsonl", LocalExecutor(1))
    assert len(found) == 72
    return found


def test_threads(expected: list[dict[str, Any]], write_spec: Callable[..., Path], tmp_path: Path) -> None:
    assert rows(write_spec(GRID), tmp_path / "threads.jsonl", LocalExecutor(5)) == expected


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray cluster of two nodes of one CPU each, on this machine; its address."""
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    nodes = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes.address
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Ray are its own
class TestRay:
    def test_rows_of_two_nodes(
        self,
        cluster: str,
        expected: list[dict[str, Any]],
        write_spec: Callable[..., Path],
        tmp_path: Path,
    ) -> None:
        assert rows(write_spec(GRID), tmp_path / "ray.jsonl", RayExecutor(cluster)) == expected

    def test_both_nodes_evaluate(
        self,
        cluster: str,
        write_spec: Callable[..., Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        evaluate_copy = ray_executor._evaluate_copy

        def noting(content: bytes, job: JobFile, chunk: Chunk) -> Finished:
            import ray

            (tmp_path / f"node-{ray.get_runtime_context().get_node_id()}").touch()
            return evaluate_copy(content, job, chunk)

        monkeypatch.setattr(ray_executor, "_evaluate_copy", noting)
        assert len(rows(write_spec(GRID), tmp_path / "ray.jsonl", RayExecutor(cluster))) == 72
        assert len(list(tmp_path.glob("node-*"))) == 2

    def test_a_job_that_cannot_be_read_is_told_as_here(
        self, cluster: str, write_spec: Callable[..., Path], tmp_path: Path
    ) -> None:
        broken = tmp_path / "broken.json"
        broken.write_text("{}")
        configurations = read_spec(write_spec(GRID)).configurations
        with pytest.raises(TraceError):
            list(RayExecutor(cluster).run(JobFile.of(broken), configurations))

    def test_no_cluster(self, write_spec: Callable[..., Path], model: Path) -> None:
        pytest.importorskip("ray")
        configurations = read_spec(write_spec(GRID)).configurations
        with pytest.raises(ConfigError, match="--address 127"):
            list(RayExecutor("127.0.0.1:1").run(JobFile.of(model), configurations))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
class TestSlurm:
    def test_rows_of_jobs(
        self, expected: list[dict[str, Any]], write_spec: Callable[..., Path], tmp_path: Path
    ) -> None:
        pytest.importorskip("submitit")
        executor = SlurmExecutor(tmp_path / "jobs", workers=1, parameters={"cluster": "local"})
        assert rows(write_spec(GRID), tmp_path / "slurm.jsonl", executor) == expected

    def test_a_parameter_that_submitit_does_not_know(
        self, write_spec: Callable[..., Path], model: Path, tmp_path: Path
    ) -> None:
        pytest.importorskip("submitit")
        executor = SlurmExecutor(tmp_path / "jobs", parameters={"cluster": "local", "speed": 11})
        with pytest.raises(ConfigError, match="speed"):
            list(executor.run(JobFile.of(model), read_spec(write_spec(GRID)).configurations))

    def test_no_slurm_here(self, write_spec: Callable[..., Path], model: Path, tmp_path: Path) -> None:
        pytest.importorskip("submitit")
        configurations = read_spec(write_spec(GRID)).configurations
        with pytest.raises(ConfigError, match="slurm"):
            list(SlurmExecutor(tmp_path / "jobs").run(JobFile.of(model), configurations))
