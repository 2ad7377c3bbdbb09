from shoal.v1 import spec_pb2 as _spec_pb2
from shoal.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActRequest(_message.Message):
    __slots__ = ("hello", "step")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    hello: ActHello
    step: ActStep
    def __init__(self, hello: _Optional[_Union[ActHello, _Mapping]] = ..., step: _Optional[_Union[ActStep, _Mapping]] = ...) -> None: ...

class ActHello(_message.Message):
    __slots__ = ("protocol_version", "actor_id", "run_id", "spec", "num_envs", "greedy", "policy", "epsilon", "noise", "max_wait_s")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVS_FIELD_NUMBER: _ClassVar[int]
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    actor_id: str
    run_id: str
    spec: _spec_pb2.EnvSpec
    num_envs: int
    greedy: bool
    policy: str
    epsilon: _containers.RepeatedScalarFieldContainer[float]
    noise: float
    max_wait_s: float
    def __init__(self, protocol_version: _Optional[int] = ..., actor_id: _Optional[str] = ..., run_id: _Optional[str] = ..., spec: _Optional[_Union[_spec_pb2.EnvSpec, _Mapping]] = ..., num_envs: _Optional[int] = ..., greedy: _Optional[bool] = ..., policy: _Optional[str] = ..., epsilon: _Optional[_Iterable[float]] = ..., noise: _Optional[float] = ..., max_wait_s: _Optional[float] = ...) -> None: ...

class ActStep(_message.Message):
    __slots__ = ("step", "observation", "first", "starts_unroll", "min_version")
    STEP_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STARTS_UNROLL_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    step: int
    observation: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    first: _tensor_pb2.Tensor
    starts_unroll: bool
    min_version: int
    def __init__(self, step: _Optional[int] = ..., observation: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ..., first: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., starts_unroll: _Optional[bool] = ..., min_version: _Optional[int] = ...) -> None: ...

class ActResponse(_message.Message):
    __slots__ = ("welcome", "actions")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    welcome: ActWelcome
    actions: ActActions
    def __init__(self, welcome: _Optional[_Union[ActWelcome, _Mapping]] = ..., actions: _Optional[_Union[ActActions, _Mapping]] = ...) -> None: ...

class ActWelcome(_message.Message):
    __slots__ = ("server_id", "policy_version", "outputs", "state")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    policy_version: int
    outputs: _containers.RepeatedCompositeFieldContainer[_spec_pb2.ArraySpec]
    state: _containers.RepeatedCompositeFieldContainer[_spec_pb2.ArraySpec]
    def __init__(self, server_id: _Optional[str] = ..., policy_version: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[_spec_pb2.ArraySpec, _Mapping]]] = ..., state: _Optional[_Iterable[_Union[_spec_pb2.ArraySpec, _Mapping]]] = ...) -> None: ...

class ActActions(_message.Message):
    __slots__ = ("step", "policy_version", "outputs", "state")
    STEP_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    step: int
    policy_version: int
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    state: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    def __init__(self, step: _Optional[int] = ..., policy_version: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ..., state: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ...) -> None: ...
