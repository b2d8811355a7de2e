"""SAEHD, DeepFaceLab's face autoencoder."""
