"""What cuDNN would choose for a convolution on a GPU that is only described.

From 9.8 on the library ranks its engines and says what workspace each needs without a device. It is asked in
a process of its own, and what it said is kept on disk.

    problems -> cache -> planner (child process with the library) -> what PyTorch would try, in order
"""
