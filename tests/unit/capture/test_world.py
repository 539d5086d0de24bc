"""Worlds of which only some ranks run: what options and launchers on the command line say."""

from __future__ import annotations

import json

import pytest

from xmem.capture import World, launched_world, world_of
from xmem.errors import ConfigError

SCRIPT = ["python", "train.py"]
ELASTIC = ["python", "-m", "torch.distributed.run"]
ACCELERATE = ["accelerate", "launch"]
TORCHRUN = ["torchrun", "--nnodes", "128", "--nproc-per-node=8", "train.py", "--num-processes", "5"]


def test_no_option_means_that_all_ranks_run() -> None:
    assert world_of(None, None, None, TORCHRUN) is None


@pytest.mark.parametrize(
    ("size", "ranks", "per_node", "command", "expected"),
    [
        (1024, "0,127,1023", None, SCRIPT, World(1024, (0, 127, 1023), 8)),
        (1024, "127,0,127", 4, SCRIPT, World(1024, (0, 127), 4)),
        (1024, None, None, SCRIPT, World(1024, (0, 1023), 8, is_chosen=True)),
        (2, None, None, SCRIPT, World(2, (0, 1), 2, is_chosen=True)),
        (1, "auto", None, SCRIPT, World(1, (0,), 1, is_chosen=True)),
        (None, "auto", None, TORCHRUN, World(1024, (0, 1023), 8, is_chosen=True)),
        (None, "7", None, ["torchrun", "--nnodes=1:4", "--nproc_per_node", "4", "t.py"], World(16, (7,), 4)),
        (None, "7", None, [*ELASTIC, "--nproc-per-node", "8", "t.py"], World(8, (7,), 8)),
        (None, "0", None, [*ACCELERATE, "--num_processes", "64", "--num_machines=8"], World(64, (0,), 8)),
        (None, "3", None, ["deepspeed", "--num_nodes", "2", "--num_gpus", "4", "t.py"], World(8, (3,), 4)),
        (32, "3", None, ["torchrun", "--nproc-per-node", "4", "t.py"], World(32, (3,), 4)),
    ],
)  # fmt: skip
def test_the_world_of_a_command(size, ranks, per_node, command, expected) -> None:
    assert world_of(size, ranks, per_node, command) == expected


@pytest.mark.parametrize(
    ("size", "ranks", "per_node", "message"),
    [
        (None, "0,1", None, "how many ranks there are"),
        (8, "0,8", None, "from 0 to 7"),
        (8, "-1", None, "from 0 to 7"),
        (8, "first", None, "--ranks first is invalid"),
        (8, "", None, "is invalid"),
        (None, None, 8, "--gpus-per-node"),
        (1024, ",".join(str(8 * node) for node in range(16)), None, "16 nodes with 128 GPUs"),
    ],
)
def test_what_makes_no_sense_is_refused(size, ranks, per_node, message) -> None:
    with pytest.raises(ConfigError, match=message):
        world_of(size, ranks, per_node, SCRIPT)


def test_ranks_of_one_node_share_its_gpus_and_those_of_two_do_not() -> None:
    told = json.loads(World(64, (0, 3, 63), 8).environment()["XMEM_RANKS"])
    assert [rank["local_rank"] for rank in told["ranks"]] == [0, 3, 7]
    assert [rank["cards"] for rank in told["ranks"]] == [[*range(8)], [*range(8)], [*range(8, 16)]]
    assert (told["size"], told["nodes"], told["per_node"]) == (64, 8, 8)


def test_the_stages_that_differ_run_too() -> None:
    world = World(64, (0, 63), 8, is_chosen=True)
    assert world.with_unlike({}) == world
    assert world.with_unlike({"world": {"pipeline": [0, 16, 32, 48]}}).ranks == (0, 16, 32, 48, 63)
    assert world.with_unlike({"world": {"pipeline": [*range(0, 64, 4)]}}).ranks == (0, 4, 60, 63)
    assert world.with_unlike({"world": {"pipeline": [0, 32], "ends": [7, 63]}}).ranks == (0, 7, 32, 63)
    many = {"world": {"ends": [*range(1, 64)]}}
    assert len(world.with_unlike(many).ranks) == 16
    assert (
        World(1024, (0, 1023), 8, is_chosen=True).with_unlike({"world": {"ends": [*range(8, 1024, 8)]}}).cards
        <= 120
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (TORCHRUN, World(1024, (0, 1023), 8, is_chosen=True)),
        (["torchrun", "--nproc-per-node", "1", "t.py"], None),
        ([*ACCELERATE, "t.py"], None),
        (SCRIPT, None),
    ],
)
def test_the_world_that_a_launcher_starts(command, expected) -> None:
    assert launched_world(command) == expected
