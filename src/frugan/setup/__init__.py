"""Networks, devices, data and a training for a recipe and a machine, for all rooms above."""
