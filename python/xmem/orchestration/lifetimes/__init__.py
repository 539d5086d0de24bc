"""Lifetimes of blocks, and blocks that are not on a GPU at all."""
