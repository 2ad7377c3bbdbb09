"""The four programs of shoal: actor, replay, inference, learner. None imports another."""

import os

# Read once, when grpc is imported: gRPC's own chatter about lost connections is not for a service's log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
