"""Tokens and TLS files: what is accepted, what is refused, how a changed file is noticed."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from shoal.config.connections import SecuritySection, TlsSection
from shoal.errors import ConfigError
from shoal.rpc.auth import TokenSource, channel_credentials, server_credentials


def _write(path: Path, text: str) -> None:
    """As secrets are rotated: a new file in the place of the old one."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    os.replace(temporary, path)


def _from_file(path: Path) -> TokenSource:
    return TokenSource(SecuritySection(token_file=path))


def test_without_a_token_nothing_is_sent_and_nothing_accepted() -> None:
    tokens = TokenSource(SecuritySection())
    assert not tokens.is_set
    assert tokens.metadata() == ()
    assert not tokens.accepts("Bearer ")


def test_a_token_is_sent_and_accepted() -> None:
    tokens = TokenSource(SecuritySection(token=SecretStr("s3cret")))
    assert tokens.is_set
    assert tokens.metadata() == (("authorization", "Bearer s3cret"),)
    assert tokens.accepts("Bearer s3cret")
    assert tokens.accepts(b"Bearer s3cret")


@pytest.mark.parametrize(
    "value", ["", "s3cret", "Bearer", "Bearer s3cre", "Bearer s3crett", "bearer s3cret", "é"]
)
def test_anything_else_is_refused(value: str) -> None:
    assert not TokenSource(SecuritySection(token=SecretStr("s3cret"))).accepts(value)


@pytest.mark.parametrize("token", ["", "with space", "tab\t", "line\nbreak", "ümlaut"])
def test_a_token_that_no_header_can_carry_is_a_config_error_without_the_secret(token: str) -> None:
    with pytest.raises(ConfigError, match=r"security\.token") as raised:
        TokenSource(SecuritySection(token=SecretStr(token)))
    assert not token or token not in str(raised.value)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old\n")
    tokens = _from_file(path)
    assert tokens.metadata() == (("authorization", "Bearer old"),)
    _write(path, "new\n")
    assert tokens.metadata() == (("authorization", "Bearer new"),)
    assert tokens.accepts("Bearer new")
    assert not tokens.accepts("Bearer old")


def test_several_lines_are_all_accepted_and_the_first_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("new\n\n  old  \n")
    tokens = _from_file(path)
    assert tokens.metadata() == (("authorization", "Bearer new"),)
    assert tokens.accepts("Bearer new")
    assert tokens.accepts("Bearer old")
    assert not tokens.accepts("Bearer ")


@pytest.mark.parametrize("content", [None, "", " \n", "two words\n"])
def test_a_file_that_cannot_be_used_is_a_config_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=str(path)):
        _from_file(path)


def test_a_file_that_is_a_directory_or_binary_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="directory"):
        _from_file(tmp_path)
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="ASCII"):
        _from_file(tmp_path / "token")


def test_a_file_that_vanishes_while_running_keeps_the_last_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    path.write_text("old\n")
    tokens = _from_file(path)
    path.unlink()
    with caplog.at_level(logging.WARNING):
        assert tokens.accepts("Bearer old")
        assert tokens.accepts("Bearer old")
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    _write(path, "new\n")
    assert tokens.accepts("Bearer new")


def test_no_tls_is_plaintext() -> None:
    assert server_credentials(SecuritySection()) is None
    assert channel_credentials(SecuritySection()) is None


def test_a_server_with_a_ca_and_no_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cert and key"):
        server_credentials(SecuritySection(tls=TlsSection(ca=tmp_path / "ca.pem")))


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = SecuritySection(tls=TlsSection(ca=tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match=r"tls\.ca .*ca\.pem"):
        channel_credentials(missing)
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"tls\.ca .*ca\.pem"):
        channel_credentials(missing)
    (tmp_path / "a.pem").write_text("no certificate")
    (tmp_path / "a.key").write_text("no key")
    pair = SecuritySection(tls=TlsSection(cert=tmp_path / "a.pem", key=tmp_path / "a.key"))
    with pytest.raises(ConfigError, match=r"tls\.cert .*a\.pem"):
        server_credentials(pair)
