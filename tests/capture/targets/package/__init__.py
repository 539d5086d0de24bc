"""A training package, run with -m."""
