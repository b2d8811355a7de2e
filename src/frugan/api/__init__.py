"""What the commands and Python users call, a folder for each verb: the wiring of recipe, engine, data and report."""
