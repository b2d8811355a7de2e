"""R3GAN."""
