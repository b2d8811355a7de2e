"""What people look at: sheets of samples, and the line on the console."""
