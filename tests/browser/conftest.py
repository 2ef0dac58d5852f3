"""The app with the embedded model, and a fresh browser profile for every test."""

from collections.abc import Iterator

import pytest
from chromium import Browser, chromium
from live_site import Site, Visitor

__all__ = ["chromium"]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.stop()


@pytest.fixture
def visitor(chromium: Browser, site: Site) -> Iterator[Visitor]:
    site.become_idle()
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(15_000)
    visitor = Visitor(context, site)
    yield visitor
    context.close()
