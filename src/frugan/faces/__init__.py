"""Face models and their data: a guest that comes in by the entry point, as another package would."""
