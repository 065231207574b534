"""Whether an SGLang server says which weight version sampled which token (`meta_info.weight_versions`).

Servers do since 0.5.19 (read in the wheels 0.5.9 to 0.5.23); only their version tells so before a reply has ended.
Pure functions.
"""

from __future__ import annotations

import re

_FIRST = (0, 5, 19)


def gives_version_spans(version: str | None) -> bool:
    """Whether a server of this version does; not if it says no version, or one that cannot be read.

    A pre-release of the first version counts as older: it may have been cut before spans came."""
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)(.*)", version or "")
    if match is None:
        return False
    release = tuple(int(part) for part in match.groups()[:3])
    early = re.match(r"[.-]?(a|b|rc|dev)", match.group(4)) is not None
    return release > _FIRST or (release == _FIRST and not early)
