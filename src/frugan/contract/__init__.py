"""How families, kinds of data and the engine meet; each knows this room and none of the others."""
