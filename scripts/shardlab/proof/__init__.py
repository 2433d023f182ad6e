"""Proof that a strategy trains a transformers model as one process does: the same class at tiny sizes, in float64."""
