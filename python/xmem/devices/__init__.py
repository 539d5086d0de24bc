"""The known GPUs and what is known about them; the descriptions are in xmem/data/gpus."""
