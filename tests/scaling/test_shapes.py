"""What operators are given at a point that no run was at."""

from __future__ import annotations

import numpy as np

from xmem.run.recorded import Recorded
from xmem.scaling.shapes import fit_shapes
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace.attribution import attribute
from xmem.trace.blocks import pair_blocks
from xmem.trace.trace import read_trace

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
    inputs = fit_shapes(["batch"], [{"batch": 2}, {"batch": 3}], runs, base=1).at({"batch": 16})
    assert inputs is not None
    for row, images in zip(np.flatnonzero(runs[1].trace.events.inputs >= 0), (16, 32), strict=True):
        given = inputs.of(int(row))
        assert given is not None
        assert given.shapes == [[images, 3, 8, 8], W, []]
        assert given.value(2) == "[1, 1]"


def test_two_operators_with_equal_inputs_may_grow_apart() -> None:
    """One is given as many images as there are in a batch, the other three in every run."""
    runs = [run(2, 3), run(3, 3)]
    inputs = fit_shapes(["batch"], [{"batch": 2}, {"batch": 3}], runs, base=1).at({"batch": 16})
    assert inputs is not None
    rows = np.flatnonzero(runs[1].trace.events.inputs >= 0).tolist()
    assert [given.shape(0)[0] for row in rows if (given := inputs.of(row)) is not None] == [16, 3]


def test_runs_that_convolve_otherwise_are_not_scaled() -> None:
    points = [{"batch": 2}, {"batch": 3}]
    assert fit_shapes(["batch"], points, [run(2, 4), run(3)], base=1).at({"batch": 16}) is None


def test_a_run_without_convolutions() -> None:
    points = [{"batch": 2}, {"batch": 3}]
    assert fit_shapes(["batch"], points, [run(), run()], base=0).at({"batch": 16}) is None


def test_other_inputs_are_put_in_place_without_indexing_the_run_again() -> None:
    recorded = run(2)
    parent = recorded.operators.parent
    inputs = fit_shapes(["batch"], [{"batch": 2}, {"batch": 3}], [recorded, run(3)], base=0).at({"batch": 9})
    changed = recorded.with_inputs(inputs)
    assert changed.operators.parent is parent
    row = int(np.flatnonzero(recorded.trace.events.inputs >= 0)[0])
    shapes = [
        given.shape(0) for each in (recorded, changed) if (given := each.operators.inputs(row)) is not None
    ]
    assert shapes == [(2, 3, 8, 8), (9, 3, 8, 8)]


def test_operators_that_the_runs_do_not_share_keep_what_they_were_given() -> None:
    def mixed(batch: int, *convolved: int) -> Recorded:
        trace = TraceBuilder()
        for place, images in enumerate(convolved):
            trace.operator("aten::_convolution", place, place + 1, input_dims=[[images, 3, 8, 8], W, []])
        trace.operator("aten::sum", 50, 60, input_dims=[[batch, 10]])
        read = read_trace(trace.alloc(0x10, 512, 100).bytes())
        blocks = pair_blocks(read)
        return Recorded(read, blocks, attribute(read, blocks))

    runs = [mixed(2, 4), mixed(3, 4, 4)]
    inputs = fit_shapes(["batch"], [{"batch": 2}, {"batch": 3}], runs, base=1).at({"batch": 16})
    operators = runs[1].with_inputs(inputs).operators
    rows = np.flatnonzero(runs[1].trace.events.inputs >= 0).tolist()
    given = [each.shape(0)[0] for row in rows if (each := operators.inputs(row)) is not None]
    assert given == [4, 4, 16]


def test_numbers_that_no_tensor_has_are_not_scaled() -> None:
    """Damaged traces hold whole numbers of any length."""

    def odd(batch: int) -> Recorded:
        trace = TraceBuilder()
        trace.operator("aten::_convolution", 0, 5, input_dims=[[batch, 3, 1 << 70], W, []])
        read = read_trace(trace.alloc(0x10, 512, 100).bytes())
        blocks = pair_blocks(read)
        return Recorded(read, blocks, attribute(read, blocks))

    inputs = fit_shapes(["batch"], [{"batch": 2}, {"batch": 3}], [odd(2), odd(3)], base=1).at({"batch": 16})
    assert inputs is not None
    given = inputs.of(int(np.flatnonzero(odd(3).trace.events.inputs >= 0)[0]))
    assert given is not None
    assert given.shapes[0] == [16, 3, 1 << 70]
