"""Data of a run: opened, checked against the recipe, fed to the step."""
