"""Attributes every block: `docs/trace_model.md`, section 5, one function per rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xmem.records import dataclass
from xmem.testing.reference.categories import Category, Lifetime, Phase, category
from xmem.testing.reference.pairing import Block, BlockFlag
from xmem.testing.reference.trace import MODULE_FRAME, NONE, ReferenceTrace, Span, frame_line, is_node

ENGINE = "autograd::engine::"
EVALUATE = "autograd::engine::evaluate_function"
STEP = "Optimizer.step#"
MOST_MODULES = 100

Stack = list[Span]


@dataclass(frozen=True)
class Attribution:
    """The attribution of one block; operators are rows of the EventTable, -1 for none."""

    operator: int
    root_operator: int
    phase: Phase
    iteration: int
    forward_link: int
    module: str | None
    source_line: str | None
    host: bool
    free_phase: Phase
    free_iteration: int
    category: Category


def attribute(
    trace: ReferenceTrace, blocks: list[Block], metadata: Mapping[str, Any] | None
) -> list[Attribution]:
    """Return the attribution of each block, in the order of the blocks."""
    return [_attribute_block(trace, block, metadata) for block in blocks]


def _attribute_block(trace: ReferenceTrace, block: Block, metadata: Mapping[str, Any] | None) -> Attribution:
    born_before = BlockFlag.BORN_BEFORE in block.flags
    never_freed = BlockFlag.NEVER_FREED in block.flags
    own = [] if born_before else stack(trace, block.thread, block.alloc_ns)
    link = forward_link_of_stack(trace, own)
    linked = own if link is None else stack(trace, link.thread, link.begin_ns)
    lifetime = Lifetime(
        phase=Phase.OTHER if born_before else phase(trace, block.thread, own),
        iteration=NONE if born_before else iteration(trace, block.alloc_ns),
        free_phase=Phase.OTHER if never_freed else _free_phase(trace, block),
        free_iteration=NONE if never_freed else iteration(trace, block.free_ns),
        freed_in_own_step=any(span.holds(block.free_ns) for span in _steps(own)),
    )
    return Attribution(
        operator=operator(own),
        root_operator=root_operator(own),
        phase=lifetime.phase,
        iteration=lifetime.iteration,
        forward_link=NONE if link is None else link.row,
        module=module(trace, linked),
        source_line=source_line(trace, linked) or source_line(trace, own),
        host=any(span.kind == "host" for span in own),
        free_phase=lifetime.free_phase,
        free_iteration=lifetime.free_iteration,
        category=category(block, lifetime, metadata),
    )


def _free_thread(trace: ReferenceTrace, block: Block) -> int:
    return trace.memory[block.free_event].thread


def stack(trace: ReferenceTrace, thread: int, time_ns: int) -> Stack:
    """Return every span of the thread that holds the time, outermost first."""
    return [span for span in trace.spans if span.thread == thread and span.holds(time_ns)]


def operators(stack: Stack) -> Stack:
    """Return the operators of a stack."""
    return [span for span in stack if span.kind == "operator"]


def operator(stack: Stack) -> int:
    """Return the row of the innermost operator."""
    return operators(stack)[-1].row if operators(stack) else NONE


def root_operator(stack: Stack) -> int:
    """Return the row of the outermost operator that is not the autograd engine's own, or else of the
    outermost."""
    outside_engine = [span for span in operators(stack) if not span.name.startswith(ENGINE)]
    candidates = outside_engine or operators(stack)
    return candidates[0].row if candidates else NONE


def phase(trace: ReferenceTrace, thread: int, stack: Stack) -> Phase:
    """Return the phase by the first rule that applies to the stack."""

    def has(kind: str, prefix: str = "") -> bool:
        return any(span.kind == kind and span.name.startswith(prefix) for span in stack)

    if has("annotation", STEP):
        return Phase.OPTIMIZER_STEP
    if has("annotation", "Optimizer.zero_grad#"):
        return Phase.ZERO_GRAD
    if has("annotation", "enumerate(DataLoader)#"):
        return Phase.LOAD
    if any(_is_evaluation(trace, span) for span in stack) or trace.is_engine_thread(thread):
        return Phase.BACKWARD
    if has("operator") or has("module") or has("module_frame"):
        return Phase.FORWARD
    return Phase.OTHER


def iteration(trace: ReferenceTrace, time_ns: int) -> int:
    """Return the number of the iteration at a time, over all threads; -1 outside of any."""
    marks = trace.of_kind("iteration") or trace.of_kind("annotation", "ProfilerStep#")
    if marks:
        by_begin = sorted(marks, key=lambda span: (span.begin_ns, span.row))
        return max((number for number, span in enumerate(by_begin) if span.holds(time_ns)), default=NONE)
    steps = outermost_steps(trace)
    return sum(step.end_ns <= time_ns for step in steps) if steps else NONE


def outermost_steps(trace: ReferenceTrace) -> Stack:
    """Return the optimizer steps that no other step of their thread holds: an optimizer may wrap another."""
    steps = trace.of_kind("annotation", STEP)
    return [step for step in steps if not _steps(_above(trace, step))]


def _steps(stack: Stack) -> Stack:
    return [span for span in stack if span.kind == "annotation" and span.name.startswith(STEP)]


def _free_phase(trace: ReferenceTrace, block: Block) -> Phase:
    thread = _free_thread(trace, block)
    return phase(trace, thread, stack(trace, thread, block.free_ns))


def _above(trace: ReferenceTrace, span: Span) -> Stack:
    """Return what a span lies below: the part of the stack at its begin that comes before the span."""
    return [outer for outer in stack(trace, span.thread, span.begin_ns) if outer.row < span.row]


def _is_evaluation(trace: ReferenceTrace, span: Span) -> bool:
    if span.kind != "operator":
        return False
    return span.name.startswith(EVALUATE) if trace.has_engine else is_node(span.name)


def _is_or_lies_below_evaluation(trace: ReferenceTrace, span: Span) -> bool:
    return (
        trace.is_engine_thread(span.thread)
        or _is_evaluation(trace, span)
        or any(_is_evaluation(trace, outer) for outer in _above(trace, span))
    )


def forward_link(trace: ReferenceTrace, span: Span) -> Span | None:
    """Return the forward operator whose gradient a backward operator computes."""
    if span.sequence_number < 0 or not _is_or_lies_below_evaluation(trace, span):
        return None
    candidates = [
        forward
        for forward in trace.of_kind("operator")
        if forward.sequence_number == span.sequence_number
        and forward.begin_ns < span.begin_ns
        and not _is_or_lies_below_evaluation(trace, forward)
    ]
    return max(candidates, key=lambda forward: (forward.begin_ns, forward.row), default=None)


def forward_link_of_stack(trace: ReferenceTrace, stack: Stack) -> Span | None:
    """Return the link of the innermost operator with a sequence number, in a stack of the backward pass."""
    numbered = [span for span in operators(stack) if span.sequence_number >= 0]
    in_backward = any(_is_evaluation(trace, span) or trace.is_engine_thread(span.thread) for span in stack)
    if not numbered or not in_backward:
        return None
    return forward_link(trace, numbered[-1])


def module(trace: ReferenceTrace, stack: Stack) -> str | None:
    """Return the path of the innermost module: from the capture's spans if there are any, or else from
    frames."""
    if trace.of_kind("module"):
        return _innermost(stack, "module", lambda span: span.name)
    frames = [span.name.removeprefix(MODULE_FRAME) for span in stack if span.kind == "module_frame"]
    if len(frames) > MOST_MODULES:
        frames[MOST_MODULES // 2 : -MOST_MODULES // 2] = ["..."]
    return ".".join(frames) or None


def source_line(trace: ReferenceTrace, stack: Stack) -> str | None:
    """Return `PATH:LINE` of the user's code, from the capture's spans if there are any, or else Python
    frames."""
    if trace.of_kind("line"):
        return _innermost(stack, "line", lambda span: span.name)
    return _innermost(stack, "user_frame", lambda span: frame_line(span.name))


def _innermost(stack: Stack, kind: str, name: Callable[[Span], str | None]) -> str | None:
    named = [span for span in stack if span.kind == kind]
    return name(named[-1]) if named else None
