"""`explore`: directions, moves, walks and projections in a generator's latent space."""
