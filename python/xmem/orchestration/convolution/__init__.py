"""Convolutions: what they compute, and cuDNN's order of results and workspaces."""
