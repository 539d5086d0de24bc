"""Captures on the CPU: it stands in for the GPU, and the script cannot tell."""
