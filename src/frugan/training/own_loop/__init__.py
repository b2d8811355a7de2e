"""Planned steps of any module, for training loops of one's own."""
