"""The grid: which cells each table needs."""
