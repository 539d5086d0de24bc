"""Recurrent layers: one call of cuDNN in place of the CPU's steps."""
