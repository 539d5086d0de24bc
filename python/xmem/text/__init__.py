"""Units, counts in words, and source lines, as people write and read them."""
