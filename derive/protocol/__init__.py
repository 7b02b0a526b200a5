"""What the layers agree on: validated specs of a catalog, and the protocols connectors implement."""

import os

# gRPC reads this when it is imported. Whatever is wrong with a connection is an error of a call, and it would say so on
# standard error as well, also of connections that end because they are no longer needed.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
