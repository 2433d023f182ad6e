"""Generated pages of the site."""
