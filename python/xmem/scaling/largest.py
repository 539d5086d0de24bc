"""The largest value of a dimension with which a job fits a GPU, by replay at every value that could be it."""

from __future__ import annotations
