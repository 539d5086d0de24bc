"""Estimation of a run: its memory on a GPU, its replay there, the verdict and the evidence."""
