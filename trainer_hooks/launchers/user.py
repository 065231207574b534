"""The other user that an agent runs as (`TITO_AGENT_UID`), so that it cannot read what the trainer can."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import text_setting


@dataclass(frozen=True, slots=True)
class AgentUser:
    """Numeric ids; None means the trainer's own."""

    uid: int | None = None
    gid: int | None = None

    def give(self, *paths: Path) -> None:
        """Make the user the owner of files of ours; links are not followed."""
        if self.uid is not None:
            for path in paths:
                os.chown(path, self.uid, -1 if self.gid is None else self.gid, follow_symlinks=False)


def agent_user(args: Any) -> AgentUser:
    """`TITO_AGENT_UID`: `1000` or `1000:1000`; the group is the same number where it is not given.

    Raises `SettingError` where it is malformed, is 0, or the trainer may not change users.
    """
    text = text_setting(args, "TITO_AGENT_UID")
    if text is None:
        return AgentUser()
    uid, _, gid = text.partition(":")
    if not uid.isdecimal() or not (gid or uid).isdecimal() or int(uid) == 0:
        raise SettingError(f"TITO_AGENT_UID is {text!r}: give a user's number, or UID:GID, other than root's")
    if os.geteuid() != 0:
        raise SettingError(f"TITO_AGENT_UID is {text!r}, but only root can run agents as another user; unset it")
    return AgentUser(int(uid), int(gid or uid))
