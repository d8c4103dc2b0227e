"""Arrow Flight entry point: read and write tables as streams of record batches over gRPC."""

import os

# grpcio reads this variable when it is imported; otherwise it writes unstructured lines to standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
