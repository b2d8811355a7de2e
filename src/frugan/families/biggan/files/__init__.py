"""Files of the programs that BigGAN comes from: the PyTorch release's checkpoints, and TensorFlow Hub's modules."""
