"""Clients that connect by TLS: to routers, to servers, to etcd."""

import json
import os
import shutil
from pathlib import Path

import pytest
from both_clients import KINDS, open_client
from certificates import Authority
from etcd import Etcd
from lookaside import CacheUnavailableError, Client, ConfigurationError, Tls
from processes import PROGRAMS, Process, answers, eventually, free_port, stats
from test_client_direct import KEYS, wait_permitted


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """The authority that all sides trust."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority):
    """A client's certificate and key, and the authority."""
    certificate, key = authority.sign("client")
    return Tls(authorities=authority.certificate, certificate=certificate, key=key)


class TlsServer(Process):
    """A server with a TLS port, and a plain one for the test."""

    def __init__(self, folder, authority: Authority) -> None:
        certificate, key = authority.sign("server")
        self.port, self.plain_port = free_port(), free_port()
        command = [
            PROGRAMS / "lookaside-server", "-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}", "-t", "1",
            "-l", f"127.0.0.1:{self.port},notls:127.0.0.1:{self.plain_port}",
        ]  # fmt: skip
        super().__init__("server", command, folder)
        self.wait_ready(lambda: answers(self.plain_port))


class TlsRouter(Process):
    """A router whose clients must have a certificate, with a plain port for the test."""

    def __init__(self, folder, authority: Authority, source: str) -> None:
        certificate, key = authority.sign("router")
        self.port, self.plain_port = free_port(), free_port()
        command = [
            PROGRAMS / "lookaside-router", "--num-proxies", "1", "--config", source, "--enable-flush-cmd",
            "-p", self.plain_port, "-l", f"127.0.0.1,mtls:127.0.0.1:{self.port}", "--pem-cert-path", certificate,
            "--pem-key-path", key, "--pem-ca-path", authority.certificate, "--probe-timeout-initial", "50",
        ]  # fmt: skip
        super().__init__("router", command, folder)
        self.wait_ready(lambda: answers(self.plain_port))


@pytest.fixture
def server(tmp_path, authority):
    """A server that is reached by TLS."""
    server = TlsServer(tmp_path, authority)
    yield server
    server.stop()


def text_of(server: TlsServer) -> str:
    """A configuration that demands TLS."""
    pool = {"servers": [f"127.0.0.1:{server.port}"], "security_mech": "tls"}
    return json.dumps({"pools": {"A": pool}, "route": "PoolRoute|A"})


@pytest.fixture
def config(tmp_path, server):
    """Its file."""
    file = tmp_path / "router.json"
    file.write_text(text_of(server))
    return f"file:{file}"


@pytest.fixture
def router(tmp_path, authority, config):
    """A router of this configuration."""
    router = TlsRouter(tmp_path, authority, config)
    yield router
    router.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_router_is_reached_by_tls(kind, router, tls):
    with open_client(kind, [f"localhost:{router.port}"], tls=tls, timeout=10) as cache:
        cache.set("k", {"a": 1})
        assert cache.get_or_load("l", lambda: "loaded") == "loaded"
        assert cache.get_many(["k", "l"]) == {"k": {"a": 1}, "l": "loaded"}
        assert cache.explain("k").pool == "A"
        cache.flush_all()
        assert cache.get("k") is None
    assert int(stats(router.plain_port)["ssl_new_sessions"]) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_servers_are_reached_by_tls_where_the_configuration_demands_it(kind, router, server, config, tls):
    with open_client(kind, [f"127.0.0.1:{router.port}"], config=config, tls=tls, timeout=10) as cache:
        wait_permitted(cache)
        cache.set_many(dict.fromkeys(KEYS, 1))
        assert cache.get_many(KEYS) == dict.fromkeys(KEYS, 1)
        figures = cache.stats()
        assert figures["direct.direct_reads"] >= len(KEYS) and figures["direct.unpermitted_reads"] == 0
    assert int(stats(server.plain_port)["ssl_handshake_errors"]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_router_that_the_configuration_names_is_reached_by_tls(kind, router, server, config, tls):
    """Its address is not known when the certificates are."""
    named = json.loads(text_of(server)) | {"routers": [f"localhost:{router.port}"]}
    Path(config.removeprefix("file:")).write_text(json.dumps(named))
    with open_client(kind, config=config, tls=tls, timeout=10) as cache:
        wait_permitted(cache)
        cache.set("k", 1)
        assert cache.get("k") == 1
        cache.flush_all()
    assert int(stats(router.plain_port)["ssl_new_sessions"]) > 0
    plain = Tls(tls.authorities, tls.certificate, tls.key, routers=False)
    with Client(config=config, tls=plain, timeout=10) as cache, pytest.raises(CacheUnavailableError):
        cache.set("k", 1)


def test_a_router_whose_certificate_is_not_of_its_name_is_not_used(router, tls):
    address = f"127.0.0.1:{router.port}"
    other = Tls(tls.authorities, tls.certificate, tls.key, server_name="cache.example")
    with Client([address], tls=other) as cache, pytest.raises(CacheUnavailableError):
        cache.get("k")
    with Client([address], tls=Tls(tls.authorities, tls.certificate, tls.key, server_name="localhost")) as cache:
        assert cache.get("k") is None


def test_a_router_of_another_authority_is_not_used(router, tls, tmp_path):
    stranger = Authority(tmp_path, "stranger")
    other = Tls(stranger.certificate, tls.certificate, tls.key)
    with Client([f"127.0.0.1:{router.port}"], tls=other) as cache, pytest.raises(CacheUnavailableError):
        cache.get("k")


def test_a_router_that_demands_a_certificate_refuses_a_client_without_one(router, tls):
    for other in (Tls(tls.authorities), None):
        with Client([f"127.0.0.1:{router.port}"], tls=other) as cache, pytest.raises(CacheUnavailableError):
            cache.get("k")


def test_renewed_files_are_used_for_new_connections(router, authority, tls, tmp_path):
    """The client's certificate has expired, say: the one that was read first is of another authority."""
    stranger = Authority(tmp_path, "stranger")
    own = tmp_path / "own.pem"
    for signer in (stranger, authority):
        certificate, key = signer.sign("renewed")
        renewing = tmp_path / "renewing.pem"
        renewing.write_text(certificate.read_text() + key.read_text())
        os.replace(renewing, own)
        if signer is stranger:
            cache = Client([f"127.0.0.1:{router.port}"], tls=Tls(tls.authorities, own))
            with pytest.raises(CacheUnavailableError):
                cache.get("k")

    def is_connected() -> bool:
        try:
            return cache.get("k") is None
        except CacheUnavailableError:
            return False

    eventually(is_connected, "the renewed certificate is used")
    cache.close()


@pytest.mark.parametrize("kind", KINDS)
def test_etcd_is_reached_by_tls_and_routers_need_not_be(kind, tmp_path, authority, server, tls):
    etcd = Etcd(tmp_path, authority)
    source = f"etcds://127.0.0.1:{etcd.port}/lookaside"
    etcd.put("lookaside", text_of(server))
    router = None
    try:
        router = TlsRouter(tmp_path, authority, source)
        plain = Tls(tls.authorities, tls.certificate, tls.key, routers=False)
        with open_client(kind, [f"127.0.0.1:{router.plain_port}"], config=source, tls=plain, timeout=10) as cache:
            wait_permitted(cache)
            cache.set("k", 1)
            assert cache.get("k") == 1
    finally:
        if router:
            router.stop()
        etcd.stop()


def test_what_cannot_be_used_is_refused(tmp_path, authority, tls, config):
    (tmp_path / "empty.pem").touch()
    shutil.copy(authority.certificate, tmp_path / "no_key.pem")
    for wrong, message in (
        (Tls(tmp_path / "missing.pem"), "missing.pem"),
        (Tls(tmp_path / "empty.pem"), "empty.pem"),
        (Tls(tls.authorities, tmp_path / "no_key.pem"), "no_key.pem"),
        (Tls(tls.authorities, key=tls.key), "a key without a certificate"),
        (Tls(tls.authorities, server_name="no/name"), "no/name"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Client(["127.0.0.1:1"], tls=wrong)
    with pytest.raises(ConfigurationError, match="needs tls="):
        Client(["127.0.0.1:1"], config="etcds://127.0.0.1:1/k")
    with pytest.raises(ConfigurationError, match="TLS"):
        Client(["127.0.0.1:1"], config=config)
