"""The command line: each command parses options, calls one function and prints its result."""

import os

# Threads that wait for each other on the CPU spin by default, which on shared cores starves those
# that work: with two of them EfficientNet-lite0 then encodes 4 patches a second, else 53. It must
# be said before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
