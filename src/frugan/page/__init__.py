"""A page to live in: watch and steer the runs of a folder, in a browser on this machine."""
