"""`export`: generators for programs that have neither frugan nor torch."""
