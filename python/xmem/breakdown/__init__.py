"""Breakdown of a run's memory: by module with forward and backward, and by source line."""
