"""The largest batch in training frameworks; each module imports its framework, and only when it is used."""
