"""Events to lines and pictures."""
