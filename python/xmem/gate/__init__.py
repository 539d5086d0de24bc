"""The gate: whether a job stays within its budget, its GPU and its baseline, for continuous integration.

    estimate, limits, baseline -> findings, each with what holds or added the bytes

The estimate's values are enough until something has grown.
"""
