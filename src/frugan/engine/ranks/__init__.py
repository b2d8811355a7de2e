"""Training by several processes: who they are, how they share an update, and how they end together."""
