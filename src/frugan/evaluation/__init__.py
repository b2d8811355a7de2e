"""`evaluate`: how good a generator's pictures are."""
