"""The values and protocols that the layers share: validated specs of a catalog, and interfaces of connectors."""

import os

# gRPC reads this variable at its import. It would otherwise write errors to standard error that calls report anyway,
# also for connections that end on purpose.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
