"""XSeg, DeepFaceLab's network that finds the mask of a face."""
