"""Faces of two imaginary people, drawn by the program: a face model can be tried without anyone's photographs."""
