"""`--use-rollout-routing-replay` at start-up: what the engine can return, and the shape in which it comes.

The wire tells no shape, so the model's config.json has to, or a setting. Pure but for what it logs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from adapters.engines.base import EngineInfo
from adapters.engines.routed_experts import ExpertShape, expert_shape
from sidecar.config import Settings, SettingsError

log = logging.getLogger(__name__)


def replay_shape(settings: Settings, info: EngineInfo, config: Mapping[str, Any]) -> ExpertShape | None:
    """The shape of the rows to ask for; None without routing replay. `config` is the model's config.json.

    Raises `SettingsError` if the engine says that it returns none, or nothing tells the shape."""
    if not settings.use_rollout_routing_replay:
        return None
    if info.returns_routed_experts is False:
        raise SettingsError(
            f"--use-rollout-routing-replay is set, but the engine at {settings.engine_url} returns no routed "
            "experts; start SGLang with --enable-return-routed-experts"
        )
    if info.returns_routed_experts is None:
        log.warning(
            "the engine does not say whether it returns routed experts (--enable-return-routed-experts); steps "
            "without them do not train (replay_rows)"
        )
    given = settings.routing_replay_shape
    shape = ExpertShape(**given) if given else expert_shape(config)
    if shape is None:
        raise SettingsError(
            "--use-rollout-routing-replay is set, but the model's config.json (beside its tokenizer) names no "
            "num_hidden_layers and num_experts_per_tok: for a model of experts give "
            "--routing-replay-shape layers=48,topk=8,experts=128, for a dense one leave the flag out"
        )
    log.info("routing replay: %d layers, %d experts per token", shape.layers, shape.topk)
    return shape
