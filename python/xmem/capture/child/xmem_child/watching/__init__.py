"""What the script does while it runs: its modules, steps, iterations, lines and tensors."""
