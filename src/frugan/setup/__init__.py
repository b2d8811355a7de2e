"""From a recipe and a machine to networks, devices, data and a training, for all rooms above."""
