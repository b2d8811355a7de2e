"""BigGAN, BigGAN-deep, SAGAN and SNGAN."""
