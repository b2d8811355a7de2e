"""Findings about this machine with their cures, and a self-test of frugan on its device."""
