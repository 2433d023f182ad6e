"""Training runs and their simulation, assembled from the other packages."""
