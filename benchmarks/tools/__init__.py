"""Tools that look for silent faults in other ways; they need the environment of .venv/peers."""
