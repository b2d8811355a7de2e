"""A run: the loop around steps, and what it writes."""
