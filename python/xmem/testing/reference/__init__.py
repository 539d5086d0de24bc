"""Slow, readable twins of the core, one file per stage: what the C++ must compute, checkable by eye.

Scans are quadratic on purpose. `trace`, `pairing`, `attribution` and `categories` follow
`docs/trace_model.md`.
"""
