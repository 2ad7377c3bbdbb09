"""What the inference server measures about itself. No torch.

Created once in `__main__`. Each metric is written by the loop or by the model thread, never by both.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shoal.metrics import Phases

PHASES = ("decode", "queue_wait", "copy", "forward", "reply", "idle")

_BATCH_ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
_LATENCY_S = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 4.0)


class InferenceMetrics:
    """Metrics of one replica."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, documentation: str) -> Counter:
            return Counter(f"shoal_inference_{name}", documentation, registry=registry)

        def gauge(name: str, documentation: str) -> Gauge:
            return Gauge(f"shoal_inference_{name}", documentation, ["policy"], registry=registry)

        self.requests = counter("requests", "Steps answered, one per group of environments.")
        self.rows = counter("rows", "Environments answered, summed over requests.")
        self.batches = counter("batches", "Forward passes.")
        self.refused = counter("refused", "Requests refused because their tensors do not fit the spec.")
        self.batch_rows = Histogram(
            "shoal_inference_batch_rows", "Rows of a forward pass.", buckets=_BATCH_ROWS, registry=registry
        )
        self.request_latency = Histogram(
            "shoal_inference_request_latency_seconds",
            "From a decoded request to its actions (s).",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.phases = Phases(
            registry,
            "shoal_inference_phase",
            "Time by phase (s). Event loop: decode, reply. Model thread: copy, forward, idle. "
            "queue_wait is summed over requests.",
            PHASES,
        )
        self.policy_version = gauge("policy_version", "Version of the weights that act; -1 before the first.")
        self.weight_swaps = counter("weight_swaps", "Versions of the weights taken into use.")
        self.weight_errors = counter("weight_errors", "Versions of the weights that did not fit the policy.")
        self.weight_load = counter("weight_load_seconds", "Time spent loading weights, off the hot path (s).")
        self.subscription_breaks = counter("subscription_breaks", "Times the learner went away.")
        self.sessions = gauge("sessions", "Open Act streams.")
        self.env_slots = gauge("env_slots", "Environments of all open Act streams.")
