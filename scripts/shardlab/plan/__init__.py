"""One step of the real engines on fake tensors: what a run will hold and send."""
