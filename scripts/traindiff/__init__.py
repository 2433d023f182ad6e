"""Dumps of the first steps of a training, to find where two trainings differ."""
