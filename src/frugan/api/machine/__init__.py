"""This machine: which of its devices to use, what this build of torch can do there, what its environment says."""
