"""`frugan masks`: labels and masks of facesets."""
