"""shoal: distributed deep reinforcement learning made of four gRPC services."""

__version__ = "0.1.0"
