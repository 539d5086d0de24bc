"""Policies: from the blocks of a CPU run to those that a GPU run would have.

Data flows ``workload`` -> ``policy`` (composition) over the policies in the files beside it, one concept a
file.
"""
