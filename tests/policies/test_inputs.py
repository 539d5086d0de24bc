"""What operators were given: whose inputs the reader keeps, and which policies look at them."""

from __future__ import annotations

from xmem.orchestration.plan import CPU_TRACE, GPU_TRACE
from xmem.trace.trace import WITH_INPUTS


def test_the_reader_keeps_the_inputs_that_policies_declare_and_no_others() -> None:
    declared = [getattr(policy, "inputs_of", frozenset()) for policy in (*CPU_TRACE, *GPU_TRACE)]
    assert frozenset(WITH_INPUTS) == frozenset().union(*declared)
