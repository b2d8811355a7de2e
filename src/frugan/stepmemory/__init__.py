"""What training costs: memory, arithmetic and traffic, found by running the real thing on tensors without data."""
