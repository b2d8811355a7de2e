"""DeepFaceLab and DeepFaceLive: their models become runs, and runs become their models."""
