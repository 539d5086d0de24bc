"""What the names of groups tell about the ranks of a job."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import xmem.capture


def _module() -> Any:
    path = Path(xmem.capture.__file__).parent / "child/xmem_child/absent/groups.py"
    spec = importlib.util.spec_from_file_location("groups_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


GROUPS = _module()


def groups(*made: tuple[str | None, list[int]], rank: int = 0, size: int = 64) -> Any:
    found = GROUPS.Groups(rank, size)
    for description, ranks in made:
        found.add(description, ranks)
    return found


@pytest.mark.parametrize(
    "name",
    ["mesh_pp", "PIPELINE_MODEL_PARALLEL_GROUP", "stage", "pipe", "mesh_dp_pp"],
)
def test_a_pipeline_is_known_by_its_name(name) -> None:
    found = groups((name, [0, 16, 32, 48]))
    assert found.pipeline == (0, 16, 32, 48)
    assert found.ends == []


@pytest.mark.parametrize(
    "name",
    [
        "mesh_dp_shard_cp",
        "TENSOR_MODEL_PARALLEL_GROUP",
        "DATA_PARALLEL_GROUP",
        "mesh_tp",
        "mesh_fsdp",
        "replicate",
    ],
)
def test_ranks_that_share_or_copy_are_alike(name) -> None:
    found = groups((name, [0, 1, 2, 3]))
    assert found.pipeline == ()
    assert found.ends == []


@pytest.mark.parametrize(
    "name", ["mesh_ep", "EXPERT_MODEL_PARALLEL_GROUP2", "mesh_dim_0", "undefined", None, "rows"]
)
def test_of_others_the_last_rank_may_differ(name) -> None:
    assert groups((name, [0, 1, 2, 3])).ends == [3]


def test_the_world_other_ranks_groups_and_oneself_are_no_coordinates() -> None:
    found = groups(("everyone", list(range(64))), ("others", [1, 2]), ("self", [0]))
    assert (found.pipeline, found.ends, found.places()) == ((), [], [])


def test_the_same_ranks_are_one_group_under_the_name_that_tells_something() -> None:
    found = groups((None, [0, 4]), ("mesh_tp", [0, 4]), ("again", [0, 4]), ("mesh_pp", [0, 8, 16]))
    assert found.ends == []
    assert found.places() == [
        {"name": "tp", "index": 0, "size": 2},
        {"name": "pp", "index": 0, "size": 3},
    ]
