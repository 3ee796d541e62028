"""The client: on a real Prometheus, and on a server that answers what Prometheus seldom does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import IPv4Address
from math import isnan
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from growpage.budget.errors import ConfigError
from growpage.fleet.config import PrometheusSettings
from growpage.fleet.prometheus import (
    PrometheusClient,
    PrometheusError,
    PrometheusUnreachableError,
    selector,
)
from tests.fleet.exporter import Exporter
from tests.prometheus_server import PrometheusServer

BCRYPT_OF_SECRET = "$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW"


class Issuer:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.ca = self._write("ca", self._name, self._key)[0]

    def issue(self, name: str) -> tuple[Path, Path]:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._write(name, subject, ec.generate_private_key(ec.SECP256R1()))

    def _write(self, name: str, subject: x509.Name, key: Any) -> tuple[Path, Path]:
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(name == "ca", None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), False
            )
            .sign(self._key, hashes.SHA256())
        )
        paths = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths


@contextmanager
def answering(*replies: tuple[int, Any]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """An HTTP server that gives these replies, the last one again and again; and what it was sent.

    Prometheus cannot be made to answer 503, or to check a token; this stands for what is before it.
    """
    left = list(replies)
    received: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append({name.lower(): value for name, value in self.headers.items()})
            status, body = left.pop(0) if len(left) > 1 else left[0]
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def scalar(value: float) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "scalar", "result": [1.0, str(value)]}}


def client(url: str, **more: Any) -> PrometheusClient:
    settings = PrometheusSettings(url=url, **more)
    return PrometheusClient(settings, sleep=lambda _: None)


def test_mutual_tls_and_basic_authentication(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    server_files, client_files = issuer.issue("server"), issuer.issue("client")
    password = tmp_path / "password"
    password.write_text("secret\n")
    web = tmp_path / "web.yml"
    web.write_text(
        yaml.safe_dump(
            {
                "tls_server_config": {
                    "cert_file": str(server_files[0]),
                    "key_file": str(server_files[1]),
                    "client_auth_type": "RequireAndVerifyClientCert",
                    "client_ca_file": str(issuer.ca),
                },
                "basic_auth_users": {"reader": BCRYPT_OF_SECRET},
            }
        )
    )
    flags = [f"--web.config.file={web}"]
    with PrometheusServer(tmp_path / "prometheus", [], flags=flags) as server:
        url = server.url.replace("http:", "https:")
        everything: dict[str, Any] = {
            "username": "reader",
            "password_file": password,
            "ca_file": issuer.ca,
            "client_cert_file": client_files[0],
            "client_key_file": client_files[1],
            "retries": 0,
        }
        with client(url, **everything) as good:
            assert abs(good.now() - time.time()) < 60
            password.write_text("wrong")
            with pytest.raises(PrometheusError, match=r"answers 401.*check the token, the user"):
                good.now()
        without_certificate = {**everything, "client_cert_file": None, "client_key_file": None}
        with (
            client(url, **without_certificate) as anonymous,
            pytest.raises(PrometheusUnreachableError),
        ):
            anonymous.now()
        with (
            client(url, **{**everything, "ca_file": None}) as trusting_the_system,
            pytest.raises(PrometheusUnreachableError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            trusting_the_system.now()


def test_raw_samples_and_warnings(tmp_path: Path) -> None:
    """A store that a querier cannot reach is a warning, and the rest is answered."""
    lost_store = {"remote_read": [{"url": "http://127.0.0.1:1/read", "read_recent": True}]}
    with (
        Exporter() as pod,
        PrometheusServer(tmp_path, [pod.address], more=lost_store) as server,
        client(server.url) as asked,
    ):
        pod.set(usage=0.25)
        deadline = time.monotonic() + 30
        while True:
            now = asked.now()
            labels = {"model_name": "smol"}
            answer = asked.samples("vllm:kv_cache_usage_perc", labels, end=now, seconds=60)
            if answer.series and len(answer.series[0].samples) > 1:
                break
            assert time.monotonic() < deadline
            time.sleep(0.3)
        (found,) = answer.series
        assert found.labels["engine"] == "0"
        assert {value for _, value in found.samples} <= {0.0, 0.25}
        assert all(now - 60 <= when <= now for when, _ in found.samples)
        assert len(answer.warnings) == 1
        assert "remote_read" in answer.warnings[0]
        missing = asked.samples("vllm:gpu_cache_usage_perc", labels, end=now, seconds=60)
        assert missing.series == ()
        stepped = asked.range("vllm:kv_cache_usage_perc", labels, start=now - 5, end=now, step=1)
        assert {when - int(when) for when, _ in stepped.series[0].samples} == {
            round(now - 5, 3) - int(round(now - 5, 3))
        }


def test_a_token_is_read_again_when_it_is_replaced(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with (
        answering((200, scalar(5.0))) as (url, received),
        client(url, bearer_token_file=token, tenant="team-a") as asked,
    ):
        asked.now()
        token.write_text("second\n")
        asked.now()
        token.unlink()
        with pytest.raises(PrometheusError, match="cannot read the bearer token"):
            asked.now()
    assert [each["authorization"] for each in received] == ["Bearer first", "Bearer second"]
    assert {each["x-scope-orgid"] for each in received} == {"team-a"}


def test_what_may_pass_is_tried_again_with_a_pause() -> None:
    pauses: list[float] = []
    busy = (503, {"status": "error", "error": "starting up"})
    with answering(busy, busy, (200, scalar(7.0))) as (url, received):
        settings = PrometheusSettings(url=url, retries=2)
        with PrometheusClient(settings, sleep=pauses.append) as asked:
            assert asked.now() == 7.0
    assert len(received) == 3
    assert len(pauses) == 2
    assert all(0 <= pause <= 1 for pause in pauses)


def test_what_does_not_pass_is_said() -> None:
    with (
        answering((503, {"status": "error", "error": "starting up"})) as (url, received),
        client(url, retries=1) as asked,
        pytest.raises(PrometheusUnreachableError, match=r"answers 503 \(starting up\)"),
    ):
        asked.now()
    assert len(received) == 2


def test_a_wrong_question_is_not_asked_again() -> None:
    with (
        answering((400, {"status": "error", "error": "parse error"})) as (url, received),
        client(url) as asked,
        pytest.raises(PrometheusError, match=r"answers 400 \(parse error\)"),
    ):
        asked.now()
    assert len(received) == 1


@pytest.mark.parametrize("body", [b"<html>", [], {"data": []}, {"status": "success"}])
def test_what_is_no_prometheus_is_told_from_one(body: Any) -> None:
    with (
        answering((200, body)) as (url, _),
        client(url) as asked,
        pytest.raises(PrometheusError, match="does not answer"),
    ):
        asked.now()


def test_nan_is_kept() -> None:
    values = [[1.0, "NaN"], [2.0, "0.5"]]
    matrix = {"resultType": "matrix", "result": [{"metric": {"pod": "a"}, "values": values}]}
    with (
        answering((200, {"status": "success", "data": matrix})) as (url, _),
        client(url) as asked,
    ):
        (found,) = asked.samples("x", {}, end=2, seconds=5).series
    assert isnan(found.samples[0][1])
    assert found.samples[1] == (2.0, 0.5)


def test_only_exact_names_are_asked_for() -> None:
    labels = {"model_name": 'a"b\\c'}
    assert selector("vllm:x", labels) == r'vllm:x{model_name="a\"b\\c"}'
    with pytest.raises(ConfigError, match="is no metric name"):
        selector('{__name__=~"vllm.*"}', {})
    with pytest.raises(ConfigError, match="is no label name"):
        selector("vllm:x", {"a-b": "c"})
