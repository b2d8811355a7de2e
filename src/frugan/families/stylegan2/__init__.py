"""StyleGAN2."""
