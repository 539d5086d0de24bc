"""Other kernels: allocations that only the CPU's kernels make, and those that only CUDA's make."""
