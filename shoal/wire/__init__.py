"""Records to protocol buffers and back. The only place that knows both.

Used by servicers and gRPC clients. Everything that comes off a socket passes through here and is checked:
what cannot be trusted raises InvalidArgumentError or LimitError.
"""

from shoal.wire.specs import (
    array_spec_from_proto,
    array_spec_to_proto,
    check_protocol_version,
    spec_from_proto,
    spec_to_proto,
)
from shoal.wire.tensors import columns_from_proto, tensor_from_proto, tensor_to_proto, write_columns
from shoal.wire.trajectories import (
    check_columns,
    check_payload,
    decode_columns,
    decode_sequence,
    decode_trajectory,
    encode_columns,
    encode_trajectory,
    episode_from_proto,
    episode_to_proto,
)

__all__ = [
    "array_spec_from_proto",
    "array_spec_to_proto",
    "check_columns",
    "check_payload",
    "check_protocol_version",
    "columns_from_proto",
    "decode_columns",
    "decode_sequence",
    "decode_trajectory",
    "encode_columns",
    "encode_trajectory",
    "episode_from_proto",
    "episode_to_proto",
    "spec_from_proto",
    "spec_to_proto",
    "tensor_from_proto",
    "tensor_to_proto",
    "write_columns",
]
