"""Formats that pictures come in: each lists what it holds and reads one picture at a time."""
