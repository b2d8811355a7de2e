"""Output for people: grids of samples, the console line, and reports."""
