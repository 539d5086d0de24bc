"""Backward belongs to the module and the line of its forward operator, on another thread and by frames."""

from xmem.testing.trace_builder import TraceBuilder

TRACE = (
    TraceBuilder()
    .user_frame("train.py", 30, "main", 0, 100)
    .module_frame("Net_0", 1, 30)
    .user_frame("/home/me/net.py", 8, "forward", 2, 29)
    .module_frame("Linear_0", 3, 10)
    .operator("aten::addmm", 4, 9, sequence_number=0)
    .module_frame("Linear_1", 13, 20)
    .operator("aten::linear", 14, 19, sequence_number=1)
    .operator("aten::addmm", 15, 18, sequence_number=1)
    .on(2000)
    .backward("AddmmBackward0", 40, 45, sequence_number=1)
    .alloc(0x100, 8, 41)
    .backward("AddmmBackward0", 50, 55, sequence_number=0)
    .operator("aten::mm", 51, 54)
    .alloc(0x200, 8, 52)
    .backward("AccumulateGradBackward0", 60, 65, sequence_number=9)
    .alloc(0x300, 8, 61)
)

BLOCKS = """
address  size_bytes  alloc_us  free_us  device  alloc_event  free_event  flags
0x100    8           41        -        0:-1    0            -           never_freed
0x200    8           52        -        0:-1    1            -           never_freed
0x300    8           61        -        0:-1    2            -           never_freed
"""

WHERE = """
operator                 root_operator            forward_link  module          source_line
AddmmBackward0           AddmmBackward0           aten::addmm   Net_0.Linear_1  /home/me/net.py:8
aten::mm                 AddmmBackward0           aten::addmm   Net_0.Linear_0  /home/me/net.py:8
AccumulateGradBackward0  AccumulateGradBackward0  -             -               -
"""

WHEN = """
phase     iteration  free_phase  free_iteration  category
backward  -          other       -               gradient
backward  -          other       -               gradient
backward  -          other       -               gradient
"""
