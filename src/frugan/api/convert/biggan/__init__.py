"""Files of the programs that BigGAN comes from."""
