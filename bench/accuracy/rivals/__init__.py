"""Other ways to foresee a job's memory, on the same rows: what they say, or why they say nothing.

compare.py         asks one of them for every row of a file of runs (command)
answer.py          the child that runs in an environment with torch, and with the rival where it is a package
static_analysis.py parameters, gradients, optimizer state and the activations of one forward pass, as DNNMem
mem_tracker.py     torch's own ``MemTracker``, under fake tensors
kitsune.py         the package torch-kitsune
preflight.py       the package torch-preflight
"""
