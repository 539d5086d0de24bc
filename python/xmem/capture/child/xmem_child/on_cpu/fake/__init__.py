"""Operators on the CPU make the tensors that they would return, and compute nothing (``--mode fake``).

Results are allocated as usual, and nobody writes to them: the host's system gives such memory no pages, so
that a model of any size fits. Everything above stays real: Python, autograd, optimizers, the profiler, the
allocator of the CPU, the policies for captures on the CPU. What is small, and follows from nothing unknown,
is computed; reads of the rest follow the rules of ``values`` (``docs/values.md``).

Read in this order: ``unseen`` (work that the profiler does not see), ``contents`` (which memory nobody has
written), ``results`` (what operators return), ``operators`` (how they are made), ``dtensors``, ``nccl`` and
``collectives`` (those of ranks), ``values`` (which of them are, and the rules for reads), ``flex_attention``
(a kernel that compiled code has, and eager code not).
"""
