"""Metrics of generated images, computed after training."""
