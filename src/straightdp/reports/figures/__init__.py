"""Figures drawn from evaluated cells and public stages, with matplotlib."""
