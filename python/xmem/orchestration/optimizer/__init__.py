"""Optimizers: what a step allocates on CUDA, by implementation."""
