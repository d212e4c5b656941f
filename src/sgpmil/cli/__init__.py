"""The command line: each command parses options, calls one function and prints its result."""

import os

# By default, threads that wait on the CPU spin and take time from the threads that work. On two
# shared cores, EfficientNet-lite0 then encodes 4 patches a second instead of 53. The variable must
# be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
