"""The configuration's types, files and checks, down to one frozen run."""
