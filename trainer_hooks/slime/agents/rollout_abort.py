"""Whether slime's own rollout loop has told its generate functions to stop.

slime's loop sets `GenerateState(args).aborted` once it has enough samples, then aborts engine requests until
every server is idle, then waits for pending `generate` calls (it may cancel them first; both must work). No
state of ours.
"""

from __future__ import annotations

import sys
from typing import Any

_MODULE = "slime.rollout.sglang_rollout"


def rollout_aborted(args: Any) -> bool:
    """True from slime's abort to its next rollout; False where slime's loop does not run in this process.

    Nothing is imported, and the state, which loads a tokenizer, is not made where nobody has made it.
    """
    module = sys.modules.get(_MODULE)
    if module is None:
        return False
    state = module.GenerateState
    made = getattr(type(state), "_instances", None)  # slime's SingletonMeta
    if made is not None and state not in made:
        return False
    return bool(state(args).aborted)
