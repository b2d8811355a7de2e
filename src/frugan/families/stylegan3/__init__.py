"""StyleGAN3."""
