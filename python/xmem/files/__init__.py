"""Files and what comes from elsewhere: URLs, compressed files, pickles without code, atomic writes."""
