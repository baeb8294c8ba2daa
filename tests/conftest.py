"""Settings that all tests share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# In CI the same examples every time; elsewhere new ones, which are kept when they fail.
settings.register_profile(
    "ci", derandomize=True, max_examples=60, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.register_profile("here", max_examples=40, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "here")
