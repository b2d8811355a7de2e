"""A run's weights with a card: what they are, how good and by what measure, and what others may do with them."""
