"""Five lives at one address: born before the trace, freed, missed free, on another device, never freed."""

from xmem.testing.trace_builder import TraceBuilder

TRACE = (
    TraceBuilder()
    .memory(0, 1, address=0x9)
    .free(0x100, 2, size=16)
    .alloc(0x100, 32, 3)
    .free(0x100, 4)
    .alloc(0x100, 64, 5)
    .alloc(0x100, 256, 6, device_type=1, device_index=0)
    .alloc(0x100, 128, 7)
)

BLOCKS = """
address  size_bytes  alloc_us  free_us  device  alloc_event  free_event  flags
0x100    16          1         2        0:-1    -            1           born_before
0x100    32          3         4        0:-1    2            3           -
0x100    64          5         7        0:-1    4            6           overwritten
0x100    256         6         -        1:0     5            -           never_freed
0x100    128         7         -        0:-1    6            -           never_freed
"""

WHERE = """
operator  root_operator  forward_link  module  source_line
-         -              -             -       -
-         -              -             -       -
-         -              -             -       -
-         -              -             -       -
-         -              -             -       -
"""

WHEN = """
phase  iteration  free_phase  free_iteration  category
other  -          other       -               unknown
other  -          other       -               temporary
other  -          other       -               temporary
other  -          other       -               input
other  -          other       -               input
"""
