"""All that training moves: weights, optimizers and their state, averages."""
