"""Losses and regularisers: pure functions on tensors."""
