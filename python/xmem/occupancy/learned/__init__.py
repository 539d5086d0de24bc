"""The network of the DNN-occu paper, in plain PyTorch: ``pip install 'xmem-fast[learned]'``.

Nothing else in xMem needs it. ``docs/occupancy.md`` says what it was trained on and how it compares.
"""
