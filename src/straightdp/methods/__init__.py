"""The pipeline's methods, from public stage to samples."""
