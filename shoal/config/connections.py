"""Who talks to whom and how: addresses, ports, secrets, limits. Part of the tree in `shoal.config.tree`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, field_validator, model_validator

from shoal.section import Section


class AddressesSection(Section):
    """Where the services are. A DNS name that resolves to several addresses is several replicas."""

    inference: tuple[str, ...] = Field(
        ("127.0.0.1:50051",), min_length=1, description="Inference servers: host:port or unix:/path."
    )
    replay: tuple[str, ...] = Field(
        ("127.0.0.1:50061",), min_length=1, description="Replay shards: host:port or unix:/path."
    )
    learner: str = Field("127.0.0.1:50071", min_length=1, description="The learner: host:port or unix:/path.")

    @field_validator("inference", "replay", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class ListenSection(Section):
    """Addresses that one service binds; port 0 takes a free one."""

    grpc: str = Field("127.0.0.1:0", description="The service's own RPCs: host:port or unix:/path.")
    health: str = Field(
        "127.0.0.1:0", description="Plaintext grpc.health.v1 for probes: host:port or unix:/path."
    )
    metrics: str = Field("127.0.0.1:0", description="HTTP /metrics: host:port.")
    announce: Path | None = Field(
        None, description="File to write the bound addresses to as JSON, once the service listens."
    )


class TlsSection(Section):
    """Files in PEM. None: plaintext. All three: mutual TLS."""

    cert: Path | None = Field(None, description="This service's certificate chain.")
    key: Path | None = Field(None, description="This service's private key.")
    ca: Path | None = Field(
        None, description="CA that signs the peers; on a server it makes clients show one."
    )

    @model_validator(mode="after")
    def _pairs(self) -> TlsSection:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key go together")
        return self


class SecuritySection(Section):
    """Who may call."""

    token: SecretStr | None = Field(
        None, description="Shared secret of the run; sent with every call and required by every server."
    )
    token_file: Path | None = Field(None, description="File that holds the token.")
    tls: TlsSection = Field(TlsSection(), description="TLS by certificates.")

    @model_validator(mode="after")
    def _one_source(self) -> SecuritySection:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file exclude each other")
        return self


class LimitsSection(Section):
    """Bounds on what comes off a socket."""

    # gRPC and LZ4 count bytes in 31 bits.
    max_message_bytes: int = Field(64 << 20, ge=1 << 16, le=(1 << 31) - 1, description="One gRPC message.")
    max_tensor_bytes: int = Field(
        256 << 20, ge=1 << 10, le=(1 << 31) - 1, description="One decompressed tensor."
    )
    max_trajectory_bytes: int = Field(
        512 << 20, ge=1 << 10, le=1 << 34, description="One decompressed trajectory."
    )


class RpcSection(Section):
    """Behaviour of connections."""

    keepalive_s: float = Field(
        5.0, ge=1, le=600, description="A silent peer is asked for life this often (s)."
    )
    keepalive_timeout_s: float = Field(5.0, ge=0.5, le=600, description="No answer for this long: gone (s).")
    max_backoff_s: float = Field(2.0, ge=0.1, le=60, description="Longest pause between two dials (s).")
    resolve_every_s: float = Field(5.0, ge=0.5, le=600, description="DNS names are resolved this often (s).")
    drain_s: float = Field(10.0, ge=0.1, le=600, description="Longest drain after SIGTERM (s).")
