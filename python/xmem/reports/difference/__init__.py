"""Two runs compared: as text and as an offline page."""
