"""What the stages report, and the table that is made of it."""
