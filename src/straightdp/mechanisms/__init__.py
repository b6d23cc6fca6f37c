"""What touches private data, and what it costs."""
