"""Aligned faces as DeepFaceLab stores them, and how they become training samples."""
