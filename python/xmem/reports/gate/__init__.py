"""Findings of the gate, in the forms that people, GitHub and code scanners read."""
