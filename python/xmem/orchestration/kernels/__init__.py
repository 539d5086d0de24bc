"""Other kernels: what the CPU's allocate and CUDA's do not, and what only CUDA's do."""
