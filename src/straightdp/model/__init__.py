"""The dual-stream transformer, its caption encoder and the latent autoencoder."""
