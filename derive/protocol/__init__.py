"""The values and protocols that the layers share: validated specs of a catalog, and interfaces of connectors."""

import os

# gRPC reads this variable at its import. It would otherwise write errors to standard error that calls report anyway,
# also for connections that end on purpose.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# With fork support, gRPC starts threads in every child between fork and exec. They abort the child once it closes the
# descriptors that they poll, and the program is not started: Spark's Java virtual machine, while a run materializes.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
