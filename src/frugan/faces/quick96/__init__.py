"""Quick96: DeepFaceLab's small face autoencoder that asks nothing, with which people begin."""
