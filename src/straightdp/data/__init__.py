"""Image sources by name, and the private set's declared range."""
