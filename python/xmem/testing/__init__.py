"""For tests of xmem and of policies written against it: a trace builder, strategies, and slow readable twins.

Nothing here is imported by `xmem` itself. `strategies` needs `hypothesis`.
"""
