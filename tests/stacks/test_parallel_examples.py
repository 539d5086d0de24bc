"""Examples of parallel training on stacks outside of PyTorch: one process that stands for a rank asks for
what that rank asks for beside real peers.

``make test-stacks`` makes the environment.
"""

from __future__ import annotations

import os

import pytest

from one_rank import EXAMPLES, real_and_alone
from stacks.__main__ import environments_folder

PYTHON = environments_folder() / "language" / "bin" / "python"

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "XMEM_STACKS" not in os.environ or not PYTHON.exists(),
        reason="runs with make test-stacks, where the environment language is there",
    ),
]


@pytest.mark.parametrize(
    ("size", "rank", "running", "script"),
    [
        (2, 1, (1,), "deepspeed_zero.py --stage 1"),
        (2, 0, (0,), "deepspeed_zero.py --stage 2 --accumulate 2"),
        (2, 1, (1,), "deepspeed_zero.py --stage 2 --offload"),
        (2, 0, (0,), "deepspeed_zero.py --stage 3"),
        (4, 3, (3,), "deepspeed_zero.py --stage 3"),
        (2, 1, (1,), "deepspeed_zero.py --stage 3 --offload"),
        (2, 1, (1,), "megatron_core.py --tensor 2"),
        (2, 0, (0, 1), "megatron_core.py --pipeline 2"),
        (2, 1, (1,), "megatron_core.py --context 2"),
        (2, 1, (1,), "megatron_core.py --experts 4 --expert-parallel 2"),
        (4, 2, (0, 2), "megatron_core.py --tensor 2 --pipeline 2 --chunks 2"),
        (4, 3, (3,), "megatron_core.py --tensor 2 --experts 4 --expert-parallel 2 --recompute"),
        (4, 3, (1, 3), "megatron_core.py --pipeline 2 --experts 4 --expert-parallel 2"),
        (4, 3, (3,), "megatron_core.py --context 2 --experts 4 --expert-parallel 2"),
        (8, 7, (3, 7), "megatron_core.py --tensor 2 --pipeline 2 --context 2"),
        (
            8,
            7,
            (3, 7),
            "megatron_core.py --tensor 2 --pipeline 2 --context 2 --experts 4 --expert-parallel 2",
        ),
    ],
)
def test_a_rank_alone_asks_for_what_it_asks_for_among_real_peers(
    size, rank, running, script, tmp_path
) -> None:
    name, *arguments = script.split()
    command = [str(EXAMPLES / name), *arguments]
    real, alone = real_and_alone(str(PYTHON), command, tmp_path, size, rank, running)
    assert len(real[0][1]) > 500
    assert alone == real
