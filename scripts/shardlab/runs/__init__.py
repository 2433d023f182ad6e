"""A run on one rank, put together from all rooms."""
