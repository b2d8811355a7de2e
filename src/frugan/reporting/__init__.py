"""What people look at: grids of samples, and the line on the console."""
