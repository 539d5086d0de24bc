"""The estimate in profiler formats: Perfetto, speedscope, flame graphs, PyTorch's memory viewer."""
