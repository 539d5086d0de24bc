"""How long blocks live, and which are not on a GPU at all."""
