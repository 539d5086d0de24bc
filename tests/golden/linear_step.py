"""One training step of a linear layer, as captured: a block of every category that a step has."""

from xmem.testing.trace_builder import TraceBuilder

TRACE = (
    TraceBuilder()
    .tensor("parameter", "Linear.weight", 0x50, 48, at_us=3)
    .line("train.py", 5, 0, 2)  # model = Linear().cuda()
    .alloc(0x50, 48, 1)
    .iteration(0, 2, 100)
    .line("train.py", 6, 2, 8)  # for batch in loader:
    .annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 3, 7)
    .alloc(0x100, 64, 4)
    .line("train.py", 7, 9, 21)  # loss = model(batch).sum()
    .module("Linear", 10, 20)
    .operator("aten::linear", 11, 19)
    .operator("aten::addmm", 12, 18, sequence_number=0)
    .alloc(0x200, 32, 13)
    .free(0x200, 14)
    .alloc(0x300, 64, 15)
    .line("train.py", 8, 30, 50)  # loss.backward()
    .backward("AddmmBackward0", 31, 44, sequence_number=0)
    .operator("aten::mm", 33, 38)
    .alloc(0x200, 48, 35)
    .free(0x300, 43)
    .line("train.py", 9, 59, 71)  # optimizer.step()
    .annotation("Optimizer.step#SGD.step", 60, 70)
    .operator("aten::clone", 62, 64)
    .alloc(0x400, 48, 63)
    .operator("aten::mul", 65, 67)
    .alloc(0x500, 48, 66)
    .free(0x500, 68)
    .free(0x100, 95)
    .iteration(1, 100, 200)
    .annotation("Optimizer.zero_grad#SGD.zero_grad", 103, 108)
    .free(0x200, 105)
)

BLOCKS = """
address  size_bytes  alloc_us  free_us  device  alloc_event  free_event  flags
0x50     48          1         -        0:-1    0            -           never_freed
0x100    64          4         95       0:-1    1            10          -
0x200    32          13        14       0:-1    2            3           -
0x300    64          15        43       0:-1    4            6           -
0x200    48          35        105      0:-1    5            11          -
0x400    48          63        -        0:-1    7            -           never_freed
0x500    48          66        68       0:-1    8            9           -
"""

WHERE = """
operator     root_operator   forward_link  module  source_line
-            -               -             -       train.py:5
-            -               -             -       train.py:6
aten::addmm  aten::linear    -             Linear  train.py:7
aten::addmm  aten::linear    -             Linear  train.py:7
aten::mm     AddmmBackward0  aten::addmm   Linear  train.py:7
aten::clone  aten::clone     -             -       train.py:9
aten::mul    aten::mul       -             -       train.py:9
"""

WHEN = """
phase           iteration  free_phase      free_iteration  category
other           -          other           -               parameter
load            0          other           0               input
forward         0          forward         0               temporary
forward         0          backward        0               activation
backward        0          zero_grad       1               gradient
optimizer_step  0          other           -               optimizer_state
optimizer_step  0          optimizer_step  0               temporary
"""
