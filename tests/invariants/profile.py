"""One hypothesis profile for all invariants: fixed examples in CI (`CI=true`), new ones elsewhere."""

import os

from hypothesis import HealthCheck, Phase, settings

PROPERTY = settings(
    deadline=None,  # the machine may be busy, and an example is many HTTP calls
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    derandomize=os.environ.get("CI", "").lower() == "true",
    print_blob=True,
    max_examples=30,
)

LONGEST = 500
"""Seconds for one property: hypothesis shrinks a failure for 300 at most, and that has to be seen."""

PLAIN = settings(
    PROPERTY,
    phases=(Phase.explicit, Phase.generate),  # no shrinking: that a failure is found is all that is asked
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
)
"""For sabotaged sidecars, and for examples that are dear."""

DEAR = settings(PROPERTY, phases=(Phase.explicit, Phase.generate), max_examples=5)
"""For examples of seconds: they are not shrunk."""
