"""titan_loop.py with what makes it equal to one device.

torchrun --nproc-per-node 2 -- examples/trainers/titan_loop_equal.py $RUN    (examples/README.md)
"""

import math

import titan_loop

if __name__ == "__main__":
    # PyTorch's betas instead of torchtitan's (0.9, 0.95), and no clipping instead of a norm of 1.0.
    titan_loop.main(betas=(0.9, 0.999), max_norm=math.inf)
