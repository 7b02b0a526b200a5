"""The values and protocols that the layers share: validated specs of a catalog, and interfaces of connectors."""

import os

# gRPC reads this variable at its import. Without it, gRPC would write errors to standard error that calls report
# anyway, even for connections that end as planned.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# With fork support, gRPC starts threads in every child between fork and exec. When the child closes the descriptors
# that these threads poll, they abort the child. So Spark's Java virtual machine could not start during a
# materialization.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
