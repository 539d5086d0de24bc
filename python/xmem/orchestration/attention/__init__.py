"""Attention: CUDA's fused kernels in place of the CPU's."""
