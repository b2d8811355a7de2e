"""AMP: DeepFaceLab's face model with a slider between two faces."""
