"""`sample`: pictures from a run or a weights file."""
