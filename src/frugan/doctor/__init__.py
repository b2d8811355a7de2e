"""What this machine can do: its findings with their cures, and a test of this program on its device."""
