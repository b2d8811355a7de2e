"""Train big image generators on the GPU you have."""
