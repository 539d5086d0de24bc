"""Where the memory of a run goes: by module with forward and backward, by source line."""
