"""Augmentation of the discriminator's pictures: real and generated ones alike are changed at random.

With few pictures a discriminator learns them by heart. Random changes of all that it sees prevent that, and do not show
in the pictures that the generator draws.
"""
