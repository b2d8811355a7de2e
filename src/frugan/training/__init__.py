"""`train`: a run from a recipe and data, new or resumed."""
