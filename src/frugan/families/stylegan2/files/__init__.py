"""Files of the programs that StyleGAN2 comes from."""
