"""What a run costs: bytes sent, measured and expected, and the collectives by themselves."""
