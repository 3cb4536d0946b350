# SPDX-License-Identifier: Apache-2.0
"""Fixtures and hooks of every test that drives the real program. Every router that a test starts is checked on the way out: nothing booked, still
alive, ends cleanly on SIGTERM, no sanitizer report."""
import os
import pathlib
import resource

import pytest

from engine import Engine, Hub
from harness import BINARY, Router


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes tens of seconds (still part of the suite)")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def pytest_collection_modifyitems(config, items):
    if not os.access(BINARY, os.X_OK):
        raise pytest.UsageError(f"no binary at {BINARY}: run `make build`, or set KVROUTE_BIN")


@pytest.fixture(scope="session")
def hub():
    hub = Hub()
    yield hub
    hub.close()


class Fleet:
    """Makes engines and routers, and puts them away."""

    def __init__(self, hub):
        self.hub = hub
        self.engines = []
        self.routers = []

    def engine(self, kind="vllm", models=("m",), **options):
        engine = Engine(self.hub, kind, models, **options)
        self.engines.append(engine)
        return engine

    def router(self, *args, ready=True, **options):
        router = Router(*args, **options)
        self.routers.append(router)
        if ready and router.admin and options.get("replicas"):
            router.wait_ready()
        return router

    def start(self, count, *args, ready=True, engine=None, **options):
        """(router, engines) with `count` engines of a kind."""
        engines = [self.engine(**(engine or {})) for _ in range(count)]
        return self.router(*args, ready=ready, replicas=engines, **options), engines

    def by_name(self, name):
        return next(e for e in self.engines if e.name == name)

    def finish_routers(self):
        """Ends and checks the routers; what is wrong with them, as a list."""
        problems = []
        for router in self.routers:
            try:
                router.check_and_stop()
            except AssertionError as error:
                problems.append(str(error))
            finally:
                router.kill()
        self.routers = []
        return problems

    def finish(self):
        problems = self.finish_routers()
        for engine in self.engines:
            engine.close()
            problems += [f"{engine.name}: not HTTP: {e}" for e in engine.protocol_errors]
        assert not problems, "\n".join(problems)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Where screenshots go; KVROUTE_PICTURES names a folder that keeps them."""
    given = os.environ.get("KVROUTE_PICTURES")
    path = pathlib.Path(given) if given else tmp_path_factory.mktemp("pictures")
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def fleet(hub):
    fleet = Fleet(hub)
    yield fleet
    fleet.finish()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Shows what the routers logged, where a test failed."""
    outcome = yield
    report = outcome.get_result()
    fleet = getattr(item, "funcargs", {}).get("fleet")
    if report.failed and fleet:
        for router in fleet.routers:
            report.sections.append((f"kvroute {router.pid}", " ".join(router.command) + "\n" + router.tail()))
