"""Optimizers: the allocations of a step on CUDA, by implementation."""
