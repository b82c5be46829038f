"""Unmodified clients of six languages in front of a router with `--leases`: none of them stores a stale value."""

import pytest
from plain_clients import go, java, node, php, python, ruby, run
from processes import Cluster
from scripts import BUILT, HEAVY, WHY_NOT, build
from toolchains import build_page

READERS = 6
SECONDS = 5.0


@pytest.fixture(params=["refuse", "pass"])
def leasing_cluster(request, tmp_path):
    """A cluster whose router takes leases."""
    cluster = Cluster("one", tmp_path, ("--leases", "--lease-set-without-miss", request.param))
    yield cluster
    cluster.stop()


def check(application, cluster) -> None:
    """The application reads and stores, and stores nothing stale."""
    outcome = run(application, cluster, READERS, SECONDS)
    assert outcome.stale_sets == 0, outcome
    assert outcome.stored > 20 and outcome.refused > 0, outcome


def test_pymemcache(leasing_cluster):
    check(python("own"), leasing_cluster)


def test_pymemcache_without_leases_stores_stale_values(cluster):
    """What the tests above would not see is no proof."""
    assert run(python("own"), cluster, READERS, SECONDS).stale_sets > 0


@pytest.mark.skipif(not HEAVY, reason=WHY_NOT)
def test_php(leasing_cluster):
    check(php(), leasing_cluster)


@pytest.mark.skipif(not HEAVY, reason=WHY_NOT)
def test_dalli(leasing_cluster):
    check(ruby(build_page("ruby") / "look_aside.rb"), leasing_cluster)


@pytest.fixture(params=["20", "0"])
def pooling_cluster(request, tmp_path):
    """A cluster whose router takes leases for all connections of an address together."""
    options = ("--leases", "--lease-scope", "address", "--lease-miss-age", "1", "--lease-hot-miss-wait", request.param)
    cluster = Cluster("one", tmp_path, options)
    yield cluster
    cluster.stop()


def test_pymemcache_with_a_pool(pooling_cluster):
    check(python("pooled"), pooling_cluster)


@pytest.mark.skipif(not HEAVY, reason=WHY_NOT)
def test_memjs(pooling_cluster):
    build("node", "npm", "ci", "--no-audit", "--no-fund")
    outcome = run(node(), pooling_cluster, READERS, SECONDS)
    assert outcome.stale_sets == 0 and outcome.stored + outcome.refused > 20, outcome


@pytest.mark.skipif(not HEAVY, reason=WHY_NOT)
@pytest.mark.timeout(600)
def test_xmemcached(pooling_cluster):
    outcome = run(java(build_page("java")), pooling_cluster, READERS, SECONDS)
    assert outcome.stale_sets == 0 and outcome.stored > 20 and outcome.refused > 0, outcome


@pytest.mark.skipif(not HEAVY, reason=WHY_NOT)
def test_rails_cache(pooling_cluster):
    outcome = run(ruby(build_page("ruby") / "rails_cache.rb"), pooling_cluster, READERS, SECONDS)
    assert outcome.stale_sets == 0 and outcome.hits > 20, outcome


@pytest.mark.skipif(not HEAVY, reason=WHY_NOT)
def test_gomemcache(pooling_cluster):
    build("go", "go", "build", "-mod=readonly", "-buildvcs=false", "-o", BUILT / "look_aside", "./look_aside")
    check(go(BUILT / "look_aside"), pooling_cluster)
