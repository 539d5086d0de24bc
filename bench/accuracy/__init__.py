"""How near estimates come to measured runs: the jobs of a file of runs, captured and estimated in every way.

runs.py       the measured runs, each with its job and its machine
cache.py      captures on disk, each under everything that it depends on
captures.py   makes what is missing (command)
estimates.py  asks every way for every row (command)
train.py      the jobs themselves (command)
"""
