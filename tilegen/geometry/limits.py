"""What CUDA limits on every GPU that is served, whatever the family of a kernel."""

MAX_GRID_X = 2**31 - 1
MAX_GRID_Y = 65535  # of axis z too
TMA_BOX = 256  # elements along a side of what TMA copies at once
BARRIER_BYTES = 1024  # static shared memory of the mbarriers, rounded up to its alignment
