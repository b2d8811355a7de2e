"""`demo`: the whole main job on data that comes with the package."""
