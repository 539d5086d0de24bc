"""The measuring kit: what PyTorch needs on a real GPU, recorded so that it can be used without one.

The process that is started plans, keeps time and writes (``visit``); it knows no torch. Every run happens in
a process of its own (``child``), forked from one that has imported everything and touched no GPU
(``zygote``).
"""
