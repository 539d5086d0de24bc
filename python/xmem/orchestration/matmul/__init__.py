"""Products of matrices: workspaces of cuBLAS, and the copies that autocast makes for them."""
