"""The rectified flow: its path, its sampler and its analytic field."""
