"""What convolutions are given at a point that no run was at."""

from __future__ import annotations

from xmem.attribution import attribute
from xmem.blocks import pair_blocks
from xmem.orchestration.policy import Recorded
from xmem.scaling.shapes import fit_shapes
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace import read_trace

W = [16, 3, 3, 3]


def run(*batches: int, size: int = 8) -> Recorded:
    """A run that convolves so many images, one after the other."""
    trace = TraceBuilder()
    for place, batch in enumerate(batches):
        args = {"Input Dims": [[batch, 3, size, size], W, []], "Concrete Inputs": ["", "", "[1, 1]"]}
        trace.operator("aten::_convolution", 10 * place, 10 * place + 5, **args)
    read = read_trace(trace.alloc(0x10, 512, 100).bytes())
    blocks = pair_blocks(read)
    return Recorded(read, blocks, attribute(read, blocks))


def test_sizes_that_grow_are_those_of_the_point() -> None:
    runs = [run(2, 4), run(3, 6)]
    shapes = fit_shapes(["batch"], [{"batch": 2}, {"batch": 3}], runs, base=1)
    found = shapes.at({"batch": 16})
    assert found is not None
    first, second = runs[1].trace.events.inputs.tolist()
    assert found == {first: [[16, 3, 8, 8], W, []], second: [[32, 3, 8, 8], W, []]}


def test_runs_that_convolve_otherwise_are_not_scaled() -> None:
    points = [{"batch": 2}, {"batch": 3}]
    assert fit_shapes(["batch"], points, [run(2, 4), run(3)], base=1).at({"batch": 16}) is None


def test_a_run_without_convolutions() -> None:
    points = [{"batch": 2}, {"batch": 3}]
    assert fit_shapes(["batch"], points, [run(), run()], base=0).at({"batch": 16}) is None


def test_other_sizes_are_put_in_place_without_indexing_the_run_again() -> None:
    recorded = run(2)
    operators = recorded.operators
    changed = recorded.with_input_dims({0: [[1]]})
    assert changed.operators is operators
    assert changed.input_dims == {0: [[1]]}
