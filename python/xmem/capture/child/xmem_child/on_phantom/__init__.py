"""Captures on the phantom GPU: the script is watched, and spared what only a real GPU could compute."""
