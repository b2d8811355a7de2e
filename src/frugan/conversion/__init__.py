"""`convert`: models of other programs to runs and back."""
