"""`plan` and `info`: what a recipe takes, and which memory savings make it fit."""
