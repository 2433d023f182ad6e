"""Where two trainings that should be equal differ first, how, and what usually causes that."""
