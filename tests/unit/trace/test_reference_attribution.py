"""Section 5 of docs/trace_model.md, a test a rule."""

from __future__ import annotations

import pytest

from xmem.testing.reference.attribution import Attribution, attribute, iteration
from xmem.testing.reference.categories import Category, Phase
from xmem.testing.reference.pairing import pair
from xmem.testing.reference.trace import ReferenceTrace, Span, read
from xmem.testing.trace_builder import TraceBuilder

EVALUATE = "autograd::engine::evaluate_function: XBackward0"


def attributed(builder: TraceBuilder) -> tuple[ReferenceTrace, list[Attribution]]:
    trace = read(builder.bytes())
    return trace, attribute(trace, pair(trace), trace.metadata)


def name(trace: ReferenceTrace, row: int) -> str | None:
    return None if row < 0 else trace.spans[row].name


def test_innermost_and_outermost_operator() -> None:
    trace = TraceBuilder().operator("outer", 0, 9).operator("inner", 1, 8).operator("empty", 5, 5)
    read_trace, (block,) = attributed(trace.alloc(8, 1, 5))
    assert (name(read_trace, block.operator), name(read_trace, block.root_operator)) == ("inner", "outer")


def test_the_root_operator_is_not_the_engine_unless_nothing_else_is_there() -> None:
    read_trace, (inside, alone) = attributed(
        TraceBuilder().operator(EVALUATE, 0, 9).operator("XBackward0", 1, 5).alloc(8, 1, 2).alloc(16, 1, 7)
    )
    assert name(read_trace, inside.root_operator) == "XBackward0"
    assert name(read_trace, alone.root_operator) == EVALUATE


@pytest.mark.parametrize(("at_us", "inside"), [(1, False), (2, True), (4, True), (5, False)])
def test_spans_are_half_open(at_us: int, inside: bool) -> None:
    _, (block,) = attributed(TraceBuilder().operator("a", 2, 5).alloc(8, 1, at_us))
    assert (block.operator >= 0) == inside


def test_other_threads_do_not_count() -> None:
    _, (block,) = attributed(TraceBuilder().operator("a", 0, 9).host(0, 9).on(2).alloc(8, 1, 5))
    assert (block.operator, block.phase, block.host) == (-1, Phase.OTHER, False)


@pytest.mark.parametrize(
    ("annotation", "operator", "phase"),
    [
        ("Optimizer.step#Adam.step", EVALUATE, Phase.OPTIMIZER_STEP),
        ("Optimizer.zero_grad#Adam.zero_grad", "aten::zero_", Phase.ZERO_GRAD),
        ("enumerate(DataLoader)#_Iter.__next__", "aten::stack", Phase.LOAD),
        ("my region", EVALUATE, Phase.BACKWARD),
        ("my region", "aten::linear", Phase.FORWARD),
    ],
)
def test_phase_of_the_strongest_span(annotation: str, operator: str, phase: Phase) -> None:
    _, (block,) = attributed(
        TraceBuilder().annotation(annotation, 0, 9).operator(operator, 1, 8).alloc(8, 1, 5)
    )
    assert block.phase == phase


def test_modules_alone_are_forward_and_nothing_is_other() -> None:
    _, blocks = attributed(
        TraceBuilder()
        .module("Net", 0, 2)
        .alloc(8, 1, 1)
        .module_frame("Net_0", 2, 4)
        .alloc(16, 1, 3)
        .annotation("my region", 4, 6)
        .line("train.py", 1, 4, 6)
        .alloc(24, 1, 5)
    )
    assert [block.phase for block in blocks] == [Phase.FORWARD, Phase.FORWARD, Phase.OTHER]


def test_iterations_by_the_captures_spans_on_any_thread() -> None:
    trace = read(
        TraceBuilder()
        .annotation("ProfilerStep#4", 0, 100)
        .on(2)
        .iteration(1, 20, 30)
        .on(3)
        .iteration(0, 0, 10)
        .bytes()
    )
    assert [iteration(trace, time_us * 1000) for time_us in (0, 9, 10, 20, 30)] == [0, 0, -1, 1, -1]


def test_where_iterations_overlap_the_latest_to_begin_counts() -> None:
    trace = read(TraceBuilder().annotation("ProfilerStep#0", 0, 9).annotation("ProfilerStep#1", 5, 7).bytes())
    assert [iteration(trace, time_us * 1000) for time_us in (4, 5, 7)] == [0, 1, 0]


def test_iterations_by_finished_outermost_optimizer_steps() -> None:
    trace = read(
        TraceBuilder()
        .annotation("Optimizer.step#Wrapper.step", 10, 20)
        .annotation("Optimizer.step#Adam.step", 12, 18)
        .on(2)
        .annotation("Optimizer.step#SGD.step", 13, 30)
        .bytes()
    )
    assert [iteration(trace, time_us * 1000) for time_us in (0, 19, 20, 29, 30)] == [0, 0, 1, 1, 2]


def test_no_marks_no_iteration() -> None:
    assert iteration(read(TraceBuilder().operator("a", 0, 9).bytes()), 5000) == -1


def test_backward_links_to_the_last_forward_operator_of_its_number() -> None:
    read_trace, (block,) = attributed(
        TraceBuilder()
        .operator("aten::linear", 0, 9, sequence_number=3)
        .operator("aten::addmm", 1, 8, sequence_number=3)
        .operator("aten::relu", 10, 12, sequence_number=4)
        .on(2)
        .backward("AddmmBackward0", 20, 30, sequence_number=3)
        .operator("aten::mm", 22, 24)
        .alloc(8, 1, 23)
        .on(1)
        .operator("aten::too_late", 25, 26, sequence_number=3)
    )
    assert name(read_trace, block.forward_link) == "aten::addmm"


def test_only_backward_has_links() -> None:
    _, (block,) = attributed(
        TraceBuilder()
        .operator("a", 0, 1, sequence_number=3)
        .operator("b", 2, 9, sequence_number=3)
        .alloc(8, 1, 5)
    )
    assert block.forward_link == -1


def test_the_engines_own_span_is_not_the_forward_operator() -> None:
    trace = (
        TraceBuilder()
        .operator(EVALUATE, 0, 9, sequence_number=3)
        .operator("XBackward0", 1, 8, sequence_number=3)
    )
    _, (block,) = attributed(trace.alloc(8, 1, 5))
    assert block.forward_link == -1


def test_backward_belongs_to_the_module_and_line_of_its_forward_operator() -> None:
    _, (block,) = attributed(
        TraceBuilder()
        .line("train.py", 5, 0, 10)
        .module("Net", 0, 10)
        .module("Net.body", 1, 9)
        .operator("aten::addmm", 2, 8, sequence_number=0)
        .line("train.py", 6, 20, 30)
        .backward("AddmmBackward0", 21, 29, sequence_number=0)
        .alloc(8, 1, 25)
    )
    assert (block.module, block.source_line) == ("Net.body", "train.py:5")


def test_a_linked_stack_without_line_leaves_the_blocks_own() -> None:
    _, (block,) = attributed(
        TraceBuilder()
        .operator("aten::addmm", 2, 8, sequence_number=0)
        .line("train.py", 6, 20, 30)
        .module("Net.loss", 20, 30)
        .backward("AddmmBackward0", 21, 29, sequence_number=0)
        .alloc(8, 1, 25)
    )
    assert (block.module, block.source_line) == (None, "train.py:6")


def test_frames_serve_where_the_capture_marked_nothing() -> None:
    builder = TraceBuilder().user_frame("train.py", 3, "main", 0, 9).module_frame("Net_0", 1, 8)
    builder.user_frame("net.py", 7, "forward", 2, 7).module_frame("Linear_1", 3, 6)
    _, (block,) = attributed(builder.alloc(8, 1, 5))
    assert (block.module, block.source_line) == ("Net_0.Linear_1", "net.py:7")

    _, (block,) = attributed(builder.module("Net", 50, 51).line("train.py", 4, 50, 51))
    assert (block.module, block.source_line) == (None, None)


def test_host_spans_mark_what_is_allocated_inside() -> None:
    _, blocks = attributed(TraceBuilder().host(0, 5).alloc(8, 1, 1).alloc(16, 1, 5))
    assert [block.host for block in blocks] == [True, False]


def test_a_free_has_phase_and_iteration_of_its_own_thread_and_time() -> None:
    _, (block,) = attributed(
        TraceBuilder()
        .iteration(0, 0, 10)
        .alloc(8, 1, 5)
        .iteration(1, 10, 20)
        .on(2)
        .annotation("Optimizer.zero_grad#SGD.zero_grad", 11, 19)
        .free(8, 15)
    )
    assert (block.phase, block.iteration) == (Phase.OTHER, 0)
    assert (block.free_phase, block.free_iteration) == (Phase.ZERO_GRAD, 1)


def test_what_was_born_before_belongs_to_nothing() -> None:
    _, (block,) = attributed(
        TraceBuilder().iteration(0, 0, 9).operator("a", 0, 9).host(0, 9).free(8, 0, size=1)
    )
    assert block == Attribution(
        -1, -1, Phase.OTHER, -1, -1, None, None, False, Phase.FORWARD, 0, Category.UNKNOWN
    )


def test_rows_are_those_of_the_table() -> None:
    trace, (block,) = attributed(TraceBuilder().operator("b", 5, 9).operator("a", 0, 4).alloc(8, 1, 6))
    assert trace.spans[block.operator] == Span("operator", "b", 0, 5000, 9000, row=1)
