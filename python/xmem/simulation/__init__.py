"""The allocator: its settings, the requests that it gets, and their replay."""
