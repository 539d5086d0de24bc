"""Finds out what cuDNN would choose for a convolution on a GPU that is only described.

From 9.8 on the library ranks its engines and reports the workspace of each without a device. It runs in a
process of its own, and its answers are kept on disk.

    problems -> cache -> planner (child process with the library) -> what PyTorch would try, in order
"""
