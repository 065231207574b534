"""slime's asynchronous training with every weight update inside a pause of all sidecars.

    python -m trainer_hooks.slime.train_async_with_rollout_pause <slime's own flags>

The order of calls is that of slime 0.3.1's train_async.py: weights to the engines, one batch generated ahead of
the one that trains, and before each update the batch ahead is awaited. What is new is the pause around both
calls of `update_weights`. slime and ray are imported when `main` runs. Runs in the driver process, one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from trainer_hooks.slime.check_args import check_args
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.rollouts.weight_update_pause import rollout_paused
from trainer_hooks.slime.slime_modules import slime_name

logger = logging.getLogger(__name__)

Pause = Callable[..., AbstractContextManager[object]]


@dataclass(frozen=True)
class Slime:
    """What the loop uses of slime and ray; a test gives its own."""

    get: Callable[[Any], Any]
    configure_logger: Callable[[], None]
    init_tracking: Callable[[Any], None]
    finish_tracking: Callable[[Any], None]
    create_placement_groups: Callable[[Any], Any]
    create_rollout_manager: Callable[[Any, Any], Any]
    create_training_models: Callable[[Any, Any, Any], Any]
    should_run_periodic_action: Callable[..., bool]

    @classmethod
    def load(cls) -> Slime:
        """The real ones. Raises `RuntimeError` outside slime's environment."""
        return cls(
            get=slime_name("ray.get"),
            configure_logger=slime_name("slime.observability.logging_utils.configure_logger"),
            init_tracking=slime_name("slime.observability.logging_utils.init_tracking"),
            finish_tracking=slime_name("slime.observability.logging_utils.finish_tracking"),
            create_placement_groups=slime_name("slime.ray.placement_group.create_placement_groups"),
            create_rollout_manager=slime_name("slime.ray.placement_group.create_rollout_manager"),
            create_training_models=slime_name("slime.ray.placement_group.create_training_models"),
            should_run_periodic_action=slime_name("slime.utils.misc.should_run_periodic_action"),
        )


class TrainLoop:
    """One run. `pause(args, reason=...)` is a context manager around each weight update."""

    def __init__(self, args: Any, slime: Slime, pause: Pause = rollout_paused) -> None:
        self._args = args
        self._slime = slime
        self._pause = pause
        self._updates = 0

    def run(self) -> None:
        """Train `args.num_rollout` batches."""
        args, slime = self._args, self._slime
        slime.configure_logger()
        groups = slime.create_placement_groups(args)
        slime.init_tracking(args)
        self._manager, self._rollouts_per_epoch = slime.create_rollout_manager(args, groups["rollout"])
        self._actor, self._critic = slime.create_training_models(args, groups, self._manager)
        self._update_weights()
        if args.check_weight_update_equal:
            slime.get(self._manager.check_weights.remote(action="compare"))
        self._train_all()
        slime.get(self._manager.dispose.remote())
        slime.finish_tracking(args)

    def _train_all(self) -> None:
        args = self._args
        batch = None
        ahead = self._manager.generate.remote(args.start_rollout_id)
        for rollout_id in range(args.start_rollout_id, args.num_rollout):
            if ahead is not None:
                batch = self._slime.get(ahead)
            last = rollout_id + 1 >= args.num_rollout
            ahead = None if last else self._manager.generate.remote(rollout_id + 1)
            if args.release_train:
                self._actor.create()
            self._train_one(rollout_id, batch)
            self._save(rollout_id)
            if args.release_train or (rollout_id + 1) % args.update_weights_interval == 0:
                if ahead is not None:
                    batch = self._slime.get(ahead)
                ahead = None
                self._update_weights()
            if self._slime.should_run_periodic_action(rollout_id, args.eval_interval, self._rollouts_per_epoch):
                self._slime.get(self._manager.eval.remote(rollout_id))

    def _actor_trains(self, rollout_id: int) -> bool:
        return not self._args.use_critic or rollout_id >= self._args.num_critic_only_steps

    def _train_one(self, rollout_id: int, batch: Any) -> None:
        if not self._args.use_critic:
            self._slime.get(self._actor.async_train(rollout_id, batch))
            return
        values = self._critic.async_train(rollout_id, batch)
        if self._actor_trains(rollout_id):
            self._slime.get(self._actor.async_train(rollout_id, batch, external_data=values))
        else:
            self._slime.get(values)

    def _save(self, rollout_id: int) -> None:
        args = self._args
        due = args.release_train or self._slime.should_run_periodic_action(
            rollout_id, args.save_interval, self._rollouts_per_epoch, args.num_rollout
        )
        if not due:
            return
        force_sync = args.release_train or rollout_id == args.num_rollout - 1
        if self._actor_trains(rollout_id):
            self._actor.save_model(rollout_id, force_sync=force_sync)
        if args.use_critic:
            self._critic.save_model(rollout_id, force_sync=force_sync)
        if args.rollout_global_dataset:
            self._slime.get(self._manager.save.remote(rollout_id))

    def _update_weights(self) -> None:
        self._updates += 1
        with self._pause(self._args, reason=f"weight update {self._updates}"):
            self._actor.update_weights()


def train(args: Any, slime: Slime | None = None, pause: Pause = rollout_paused) -> None:
    """Run the loop with slime's parsed `args`. Raises `SettingError` on arguments that would go wrong."""
    if getattr(args, "colocate", False):
        raise SettingError(
            "--colocate is set: engines that share the trainer's GPUs cannot generate while it trains; leave it out"
        )
    check_args(args)
    TrainLoop(args, slime or Slime.load(), pause).run()


def main() -> None:
    """Parse slime's flags and train."""
    train(slime_name("slime.utils.arguments.parse_args")())


if __name__ == "__main__":
    main()
