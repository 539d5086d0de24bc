"""A gradient that is accumulated over two iterations and freed in the third, beside what backward uses up."""

from xmem.testing.trace_builder import TraceBuilder

TRACE = (
    TraceBuilder()
    .annotation("ProfilerStep#7", 0, 100)
    .operator("aten::mul", 5, 15, sequence_number=3)
    .alloc(0x100, 512, 10)
    .backward("MulBackward0", 20, 40, sequence_number=3)
    .operator("aten::mul_", 22, 30)
    .alloc(0x200, 512, 25)
    .alloc(0x300, 512, 26)
    .free(0x300, 35)
    .free(0x100, 90)
    .annotation("ProfilerStep#8", 100, 200)
    .backward("MulBackward0", 120, 140, sequence_number=4)
    .alloc(0x300, 512, 125)
    .free(0x300, 135)
    .annotation("ProfilerStep#9", 200, 300)
    .annotation("Optimizer.zero_grad#Adam.zero_grad", 205, 215)
    .free(0x200, 210)
)

BLOCKS = """
address  size_bytes  alloc_us  free_us  device  alloc_event  free_event  flags
0x100    512         10        90       0:-1    0            4           -
0x200    512         25        210      0:-1    1            7           -
0x300    512         26        35       0:-1    2            3           -
0x300    512         125       135      0:-1    5            6           -
"""

WHERE = """
operator      root_operator  forward_link  module  source_line
aten::mul     aten::mul      -             -       -
aten::mul_    MulBackward0   aten::mul     -       -
aten::mul_    MulBackward0   aten::mul     -       -
MulBackward0  MulBackward0   -             -       -
"""

WHEN = """
phase     iteration  free_phase  free_iteration  category
forward   0          other       0               temporary
backward  0          zero_grad   2               gradient
backward  0          backward    0               temporary
backward  1          backward    1               temporary
"""
