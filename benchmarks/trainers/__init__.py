"""Trainings without the workflow: their cases and judged rows; large models."""
