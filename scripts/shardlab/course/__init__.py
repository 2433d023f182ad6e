"""What the course needs besides its text: exercises, checks of its lessons, planted faults."""
