"""What is measured: each part in a child of its own, with a session that has the meter and the wire."""
