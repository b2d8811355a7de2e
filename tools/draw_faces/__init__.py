"""Faces of two imaginary people, drawn: a face model can be tried without anyone's photographs."""
