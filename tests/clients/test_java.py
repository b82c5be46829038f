"""Java's spymemcached and xmemcached: both protocols, and SASL by the former."""

import pytest
from endpoints import PASSWORD, USER
from scripts import BUILT, HEAVY, HERE, WHY_NOT, build, exchange

CLASS_PATH = f"{HERE}/java/target/classes:{HERE}/java/target/jars/*"

pytestmark = pytest.mark.skipif(not HEAVY, reason=WHY_NOT)


@pytest.fixture(scope="module", autouse=True)
def classes():
    """The built scripts, with the jars that pom.xml names."""
    build("java", "mvn", "-q", "-B", "-ntp", f"-Dmaven.repo.local={BUILT / 'm2'}", "process-classes")


@pytest.mark.parametrize("protocol", ["text", "binary"])
@pytest.mark.parametrize("client", ["Spymemcached", "Xmemcached"])
def test_java(open_server, client, protocol):
    exchange("java", "java", "-cp", CLASS_PATH, client, f"127.0.0.1:{open_server.port}", protocol)


def test_spymemcached_with_a_password(guarded_server):
    address = f"127.0.0.1:{guarded_server.port}"
    exchange("java", "java", "-cp", CLASS_PATH, "Spymemcached", address, "binary", USER, PASSWORD)
