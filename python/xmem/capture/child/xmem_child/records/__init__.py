"""What the capture writes: the trace, the allocator's requests, what the cards held, progress, failures."""
