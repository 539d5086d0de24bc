"""What the gate found, in the forms that people, GitHub and code scanners read."""
