"""How a program starts at a site, waits and ends: srun, the image, torchrun."""
