"""Which encoding to choose: tasks, training, evaluation by length, and the report."""
