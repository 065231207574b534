"""Properties of the rollout worker, whatever fails, in whichever order runs end, whenever it is stopped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer_hooks.rollouts.generators import dead, trajectory
from tests.trainer_hooks.rollouts.slime_process import PromptSource, rollout_args
from tests.trainer_hooks.slime_stand_in import Sample
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.rollouts.group import Group
from trainer_hooks.slime.rollouts.group_filter import GroupFilter
from trainer_hooks.slime.rollouts.policy import Policy, RolloutError
from trainer_hooks.slime.rollouts.run import is_dead
from trainer_hooks.slime.rollouts.settings import RolloutSettings
from trainer_hooks.slime.rollouts.worker import RolloutWorker

SETTINGS = settings(max_examples=100, deadline=None)
SIZE = 2


class Ledger:
    """A source that writes down every group's fate."""

    def __init__(self, limit: int | None) -> None:
        self.args = rollout_args(trajectory, n_samples_per_prompt=SIZE)
        self._prompts = PromptSource(self.args, limit)
        self._again: list[list[Sample]] = []
        self.under_way: set[int] = set()
        self.delivered: list[int] = []
        self.dropped: list[int] = []
        self.given_back: list[int] = []

    def take(self, count: int) -> list[list[Sample]]:
        groups = self._prompts.get_samples(count)
        for number in map(_number, groups):
            assert number not in self.under_way
            self.under_way.add(number)
        return groups

    def give_back(self, groups: Sequence[list[Sample]]) -> None:
        self._settle(groups, self.given_back)

    def deliver(self, rollout_id: int, groups: Sequence[list[Sample]]) -> None:
        self._settle(groups, self.delivered)

    def drop(self, groups: Sequence[list[Sample]]) -> None:
        self._settle(groups, self.dropped)

    def _settle(self, groups: Sequence[list[Sample]], fate: list[int]) -> None:
        for number in map(_number, groups):
            self.under_way.remove(number)
            fate.append(number)

    @property
    def taken(self) -> int:
        return self._prompts.sample_group_index


def _number(group: list[Sample]) -> int:
    assert group[0].group_index is not None
    return group[0].group_index


@dataclass(frozen=True)
class Fate:
    """One run: how often it dies before it lives, and how many turns of the loop it takes."""

    deaths: int
    turns: int
    versions: tuple[str, ...]


@dataclass
class Script:
    fates: list[Fate]
    wrong_setting_at: int | None
    calls: Counter[int] = field(default_factory=Counter)
    lived: Counter[int] = field(default_factory=Counter)

    async def __call__(self, sample: Sample, position: int) -> list[Sample]:
        assert sample.index is not None
        fate = self.fates[sample.index % len(self.fates)]
        self.calls[sample.index] += 1
        if self.wrong_setting_at == sum(self.calls.values()):
            raise SettingError("scripted")
        for _ in range(fate.turns):
            await asyncio.sleep(0)
        if self.calls[sample.index] <= fate.deaths:
            return dead(sample)
        self.lived[sample.index] += 1
        return trajectory(sample, versions=fate.versions)


fates = st.builds(
    Fate,
    deaths=st.sampled_from([0, 0, 0, 1, 2, 9]),
    turns=st.integers(0, 6),
    versions=st.sampled_from([("1",), ("1", "2"), ("2",), ("2", "3"), ("3",), ("unknown",)]),
)
policies = st.builds(
    Policy, pool=st.integers(1, 6), surplus=st.booleans(), between_calls=st.booleans(), keep_dead=st.booleans()
)


def _filter(args: object, group: list[list[Sample]]) -> bool:
    return len({run[0].index for run in group}) == SIZE and _number([group[0][0]]) % 5 != 4


@SETTINGS
@given(
    script=st.builds(
        Script,
        fates=st.lists(fates, min_size=1, max_size=12),
        wrong_setting_at=st.one_of(st.none(), st.none(), st.integers(1, 30)),
    ),
    policy=policies,
    keep=st.integers(0, 2),
    limit=st.one_of(st.none(), st.integers(0, 12)),
    targets=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    rest=st.integers(0, 10),
    cancel_after=st.one_of(st.none(), st.integers(0, 20)),
    use_filter=st.booleans(),
)
def test_every_group_has_one_fate_whatever_fails(
    script: Script,
    policy: Policy,
    keep: int,
    limit: int | None,
    targets: list[int],
    rest: int,
    cancel_after: int | None,
    use_filter: bool,
) -> None:
    ledger = Ledger(limit)
    asyncio.run(_play(ledger, script, policy, keep, targets, rest, cancel_after, use_filter))
    fates = [*ledger.delivered, *ledger.dropped, *ledger.given_back]
    assert not ledger.under_way
    assert sorted(fates) == list(range(ledger.taken))
    # a run that lived was not run again, and one that died was tried no more than three times
    assert all(count <= 1 for count in script.lived.values())
    assert all(count <= 3 for count in script.calls.values())


async def _play(
    ledger: Ledger,
    script: Script,
    policy: Policy,
    keep: int,
    targets: list[int],
    rest: int,
    cancel_after: int | None,
    use_filter: bool,
) -> None:
    worker = RolloutWorker(
        ledger,
        script,
        policy,
        RolloutSettings(
            group_size=SIZE, concurrency=5, retries=2, retry_delay=0, keep_versions=keep, max_dead_groups=4
        ),
        group_filter=GroupFilter(ledger.args, _filter) if use_filter else None,
    )
    total: Counter[str] = Counter()
    try:
        for rollout_id, target in enumerate(targets):
            before = len(ledger.delivered)
            call = asyncio.ensure_future(_collect(worker, rollout_id, target, keep))
            if cancel_after is not None and rollout_id == len(targets) - 1:
                for _ in range(cancel_after):
                    await asyncio.sleep(0)
                call.cancel()
            groups = await call
            assert len(groups) == target
            assert [group.order for group in groups] == sorted(group.order for group in groups)
            assert ledger.delivered[before:] == [_number(group.templates) for group in groups]
            for group in groups:
                assert [run[0].index for run in group.runs] == [sample.index for sample in group.templates]
                assert group.live() or policy.keep_dead
            for _ in range(rest):
                await asyncio.sleep(0)
            running_before_stop = worker.in_flight
            assert running_before_stop <= policy.pool
            total.update(worker.take_counts())
    except (RolloutError, SettingError, asyncio.CancelledError):
        pass
    finally:
        await worker.stop()
        total.update(worker.take_counts())
    dropped = len(ledger.dropped)
    told = total["stale"] + sum(count for name, count in total.items() if name.startswith("filtered/"))
    told += 0 if policy.keep_dead else total["exhausted"]
    assert told == dropped
    assert total["taken"] == ledger.taken
    assert total["delivered"] == len(ledger.delivered)
    assert total["given_back"] == len(ledger.given_back)
    assert len(asyncio.all_tasks()) == 1


async def _collect(worker: RolloutWorker, rollout_id: int, target: int, keep: int) -> list[Group]:
    groups = await worker.collect(rollout_id, target)
    # looked at in the same turn of the loop: runs that go on may bring newer versions in the next
    if keep:
        assert all(_age(worker, run) < keep for group in groups for run in group.runs if not is_dead(run))
    return groups


def _age(worker: RolloutWorker, run: list[Sample]) -> int:
    gap = worker.window.gap(run)
    assert gap is not None
    return gap
