"""Tables of evaluated cells."""
