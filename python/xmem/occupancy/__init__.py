"""How busy a GPU will be: occupancy of kernels, known before they run."""
