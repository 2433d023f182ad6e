"""Changes of other projects' code, one file per part of a project; `reviewed.py` lists them and their versions."""
