"""The papers' claims as commands: what is trained for each, what is read from it, and whether it holds."""
