"""The allocator simulator held to the real caching allocator of an installed torch, on the phantom GPU.

`sequences` and `recordings` make requests, `drive_torch` issues them inside a process with torch,
`real_allocator` starts it and reads what it wrote, `comparison` replays the same and names the first
difference. ``python -m oracle`` (from ``tests``) is the long run.
"""
