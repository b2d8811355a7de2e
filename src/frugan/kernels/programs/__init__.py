"""What kernels start on a card: programs in Triton's own language. Imported by what starts them, as Triton may miss."""
