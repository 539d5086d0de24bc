"""Holds xMem against memory figures that others measured on real GPUs and published.

A *project* is where figures come from. A *row* is one published figure. A *job* is what has to run once for
some rows; its *answers* are our figures for them.
"""
