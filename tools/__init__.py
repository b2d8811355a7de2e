"""Programs that make what ships; none of them is part of the package."""
