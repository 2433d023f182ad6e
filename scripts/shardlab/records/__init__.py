"""File formats that runs write and the report reads."""
