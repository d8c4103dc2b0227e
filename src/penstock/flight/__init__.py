"""The edge for Arrow Flight: tables as streams of rows, over gRPC."""

import os

# The library reads this when it is loaded, and would else write to standard error what is no line of our log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
