"""The control plane's calls as methods, shared by the sync and the async client.

Each method describes its call with `control_requests` and hands it to `send`, which alone does I/O.
Immutable after construction; the concurrency rule is that of the client that implements `send`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from trainer_hooks import control_requests as requests
from trainer_hooks.control_requests import ControlRequest, PauseMode


class ControlCalls[R]:
    """The calls, shared by both clients: R is a reply, or the awaitable of one."""

    def __init__(self, base_url: str, token: str | None) -> None:
        self.base_url = _checked_url(base_url)
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    @classmethod
    def from_env(cls) -> Self:
        """The client of the one URL in `TITO_CONTROL_URL`, with `TITO_CONTROL_TOKEN`. Raises ValueError."""
        clients = cls.all_from_env()
        if len(clients) != 1:
            raise ValueError(f"TITO_CONTROL_URL names {len(clients)} sidecars; use all_from_env(), or name one URL")
        return clients[0]

    @classmethod
    def all_from_env(cls) -> list[Self]:
        """One client per URL of the comma list `TITO_CONTROL_URL`, with `TITO_CONTROL_TOKEN`. Raises ValueError."""
        urls = [url.strip() for url in os.environ.get("TITO_CONTROL_URL", "").split(",") if url.strip()]
        token = os.environ.get("TITO_CONTROL_TOKEN")
        if not urls:
            raise ValueError("TITO_CONTROL_URL is not set; name the sidecar's control plane, host and port")
        if not token:
            raise ValueError(
                "TITO_CONTROL_TOKEN is not set; give the token the sidecar was started with, or the one in its "
                "state directory's control-token file"
            )
        return [cls(url, token) for url in urls]

    def send(self, request: ControlRequest) -> R:
        """Send one call and read its reply. Raises `ControlError`."""
        raise NotImplementedError

    def open_session(
        self,
        *,
        session_id: str | None = None,
        instance_id: str | None = None,
        run_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> R:
        """`{session_id, base_url, anthropic_base_url, api_key}`; `sampling` pins what the agent may ask for."""
        return self.send(
            requests.open_session(
                session_id=session_id,
                instance_id=instance_id,
                run_id=run_id,
                metadata=metadata,
                sampling=sampling,
            )
        )

    def finalize_session(
        self,
        session_id: str,
        *,
        instance_id: str | None = None,
        label: str | None = None,
        reward: float | Mapping[str, float] | None = None,
        anchor_step_id: str | None = None,
        timeout_seconds: float | None = None,
    ) -> R:
        """Close the session and build its segments; `{success, aborted_step_ids, num_segments, ...}`.

        Waits up to `timeout_seconds` (60 by default) for calls in flight, which are then aborted and recorded.
        """
        return self.send(
            requests.finalize_session(
                session_id,
                instance_id=instance_id,
                label=label,
                reward=reward,
                anchor_step_id=anchor_step_id,
                timeout_seconds=timeout_seconds,
            )
        )

    def discard_session(self, session_id: str) -> R:
        """Abort and forget the session; `{success, session_removed, segments_removed}`."""
        return self.send(requests.discard_session(session_id))

    def view_session(self, session_id: str) -> R:
        """The session's live view: `{session_id, state, lineages, steps}`."""
        return self.send(requests.view_session(session_id))

    def read_trajectory(
        self,
        *,
        session_id: str | None = None,
        trajectory_id: str | None = None,
        max_groups: int | None = None,
        min_group_size: int | None = None,
        drain: bool = False,
        include_drained: bool = False,
    ) -> R:
        """`{success, data: [segment], drained}` of a session, a trajectory, or of up to `max_groups` groups."""
        return self.send(
            requests.read_trajectory(
                session_id=session_id,
                trajectory_id=trajectory_id,
                max_groups=max_groups,
                min_group_size=min_group_size,
                drain=drain,
                include_drained=include_drained,
            )
        )

    def pause_rollout(
        self,
        *,
        reason: str | None = None,
        mode: PauseMode | None = None,
        pause_id: str | None = None,
        timeout_seconds: float | None = None,
        lease_seconds: float | None = None,
        session_id: str | None = None,
        instance_id: str | None = None,
    ) -> R:
        """Pause generation, or renew `pause_id`; `{status, pause_id, quiesced, ...}`. Look at `quiesced`."""
        return self.send(
            requests.pause_rollout(
                reason=reason,
                mode=mode,
                pause_id=pause_id,
                timeout_seconds=timeout_seconds,
                lease_seconds=lease_seconds,
                session_id=session_id,
                instance_id=instance_id,
            )
        )

    def resume_rollout(
        self, *, pause_id: str | None = None, version: str | None = None, reason: str | None = None
    ) -> R:
        """Lift `pause_id` (all pauses without one); `{status, paused, version, rollout_epoch, suspended}`."""
        return self.send(requests.resume_rollout(pause_id=pause_id, version=version, reason=reason))

    def pause_state(self) -> R:
        """`{paused, pauses, version, rollout_epoch, active, suspended}`."""
        return self.send(requests.pause_state())

    def health(self) -> R:
        """Whether the process lives."""
        return self.send(requests.health())

    def ready(self, *, engine: bool = False) -> R:
        """The readiness report; raises `ControlUnavailableError`, with the report as `body`, while not ready."""
        return self.send(requests.ready(engine=engine))

    def capabilities(self) -> R:
        """Modes, tokenizer, template, versions seen and engine features."""
        return self.send(requests.capabilities())


def _checked_url(base_url: str) -> str:
    if not base_url.startswith(("http://", "https://")):
        raise ValueError(f"the control URL is {base_url!r}; it must start with http:// or https://")
    return base_url.rstrip("/")
