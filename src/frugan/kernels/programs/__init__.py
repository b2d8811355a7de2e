"""Programs that kernels start on a card, in Triton's own language. Imported by what starts them, as Triton may miss."""
