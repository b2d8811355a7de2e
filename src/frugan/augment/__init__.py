"""Augmentation that the discriminator sees: what it is shown is changed at random, real and generated pictures alike.

With few pictures a discriminator learns them by heart. Changing what it sees by operations that the generator cannot
be blamed for keeps it honest, and does not show in what the generator draws.
"""
