"""PyTorch's memory snapshots: read, written, and compared with a replay of what they recorded."""
