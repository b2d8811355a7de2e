"""Where pictures come from, how they are prepared, and how they become batches."""
