"""Comparison of two runs, as text and as an offline page."""
