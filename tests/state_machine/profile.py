"""How long the state machine runs: `TITO_EXAMPLES` examples instead of the few that every test run can bear."""

import os

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("TITO_EXAMPLES", "0"))
"""0: the usual number."""
_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def machine(examples: int, steps: int = 20) -> settings:
    """`examples` of at most `steps` actions, or `TITO_EXAMPLES` of half as many again."""
    return settings(
        deadline=None,
        suppress_health_check=_CHECKS,
        derandomize=os.environ.get("CI", "").lower() == "true" and not EXAMPLES,
        print_blob=True,
        max_examples=EXAMPLES or examples,
        stateful_step_count=steps * 3 // 2 if EXAMPLES else steps,
    )


PLAIN = settings(
    machine(200),
    phases=(Phase.explicit, Phase.generate),  # that a failure is found is all that is asked
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
)
"""For sabotaged sidecars."""
