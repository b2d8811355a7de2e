"""How good generated pictures are."""
