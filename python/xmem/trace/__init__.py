"""A trace in columns: its events, its blocks, and who allocated each."""
