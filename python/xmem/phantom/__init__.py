"""The phantom GPU from outside: the machine that a process should see, how to start it there, and what it
did.

The library that answers CUDA inside of that process is ``csrc/phantom``.
"""
