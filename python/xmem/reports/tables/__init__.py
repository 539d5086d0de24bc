"""Blocks, holders and memory over time as tables for other programs: CSV and Parquet."""

from enum import StrEnum


class TableName(StrEnum):
    """The available tables."""

    BLOCKS = "blocks"
    BREAKDOWN = "breakdown"
    TIMELINE = "timeline"
