from shoal.v1 import spec_pb2 as _spec_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubscribeRequest(_message.Message):
    __slots__ = ("protocol_version", "subscriber_id", "spec", "current_version", "policy", "policy_name")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CURRENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    POLICY_NAME_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    subscriber_id: str
    spec: _spec_pb2.EnvSpec
    current_version: int
    policy: str
    policy_name: str
    def __init__(self, protocol_version: _Optional[int] = ..., subscriber_id: _Optional[str] = ..., spec: _Optional[_Union[_spec_pb2.EnvSpec, _Mapping]] = ..., current_version: _Optional[int] = ..., policy: _Optional[str] = ..., policy_name: _Optional[str] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("version", "total_bytes", "sha256", "offset", "data", "untrained")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    UNTRAINED_FIELD_NUMBER: _ClassVar[int]
    version: int
    total_bytes: int
    sha256: bytes
    offset: int
    data: bytes
    untrained: bool
    def __init__(self, version: _Optional[int] = ..., total_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., untrained: _Optional[bool] = ...) -> None: ...
