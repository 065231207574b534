"""What one hypothesis example does: play a program, look at the session, check. Used by the tests and by the test
that the tests can fail."""

from collections.abc import Sequence

from tests.invariants.agent import Agent
from tests.invariants.aligned import check_aligned, check_once, check_tokens
from tests.invariants.checks import View, check_exact, check_template
from tests.invariants.failures import Failure
from tests.invariants.house import House
from tests.invariants.killing import Fuse, play_and_kill
from tests.invariants.moves import Program
from tests.invariants.world import World


async def exact_example(world: World, program: Program) -> None:
    """I1, and I2 between the sampled spans."""
    agent = Agent(world, world.new_session(), program)
    journal = await agent.play()
    await world.engine.wait_idle()
    view = await world.view(journal.session_id)
    check_exact(journal, view)
    check_template(journal, view)


async def aligned_example(world: World, program: Program) -> None:
    """I3 and I4 of the segments that the trainer reads."""
    agent = Agent(world, world.new_session(), program)
    journal = await agent.play()
    await world.engine.wait_idle()
    segments = await world.segments(journal.session_id)
    view = await world.view(journal.session_id)
    check_aligned(journal, view, segments)
    check_tokens(journal, view, segments)
    check_once(journal, view, segments)


async def unpoisoned_example(world: World, program: Program, wrong: Sequence[Failure]) -> None:
    """I8: a failure before each of the first moves, then I1 and I2 of all that went well."""
    agent = Agent(world, world.new_session(), program)
    journal = agent.journal
    await world.post("/session/open", session_id=journal.session_id)
    for index, move in enumerate(program.moves):
        for failure in wrong[index : index + 1]:
            before = await world.view(journal.session_id)
            exchange = await failure.happen(agent)
            failure.check(exchange)
            after = await world.view(journal.session_id)
            found, left = _without_hung_up_calls(before, before), _without_hung_up_calls(after, before)
            assert found == left, f"I8: {failure.kind} changed the session from {found} to {left}"
            if failure.retried and not failure.refused:
                await agent.repeat(exchange)
        await agent.make(move)
    await world.engine.wait_idle()
    view = await world.view(journal.session_id)
    check_exact(journal, view)
    check_template(journal, view)


def _without_hung_up_calls(view: View, before: View) -> View:
    """`view` but for the steps that were in flight before, since the agent had hung up: they end when they end."""
    flying = {step["step_id"] for step in before["steps"] if step["state"] in ("running", "detached")}
    return {**view, "steps": [step for step in view["steps"] if step["step_id"] not in flying]}


async def durable_example(house: House, programs: Sequence[Program], fuse: Fuse) -> None:
    """I5 across one kill, then I1 and I2 over both lives."""
    agents = await play_and_kill(house, programs, fuse)
    await house.world.engine.wait_idle()
    for agent in agents:
        view = await house.world.view(agent.journal.session_id)
        check_exact(agent.journal, view)
        check_template(agent.journal, view)
    await house.world.forget()
