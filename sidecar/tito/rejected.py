"""Which delivered replies did the agent drop? Pure.

A call's replies were dropped when the conversation went on from its very prompt with something else: with the reply
of another call with the same prompt, or with an assistant message of the client's own. Of the replies of one call
(`n` > 1) the agent may take any, and it drops none by that. A conversation that was led on from an earlier point
with other messages is no sign: side calls (a title, a summary) look the same.
"""

from __future__ import annotations

from sidecar.tito.trajectory import Node, Trajectory


def rejected_steps(trajectory: Trajectory) -> frozenset[str]:
    """Ids of the delivered steps that the agent dropped."""
    continued = {node.record.call_id for node in trajectory if node.children}
    replaced = {step_id for node in trajectory for step_id in node.record.replaced}
    twins: dict[bytes, list[Node]] = {}
    for node in trajectory:
        if node.record.state == "committed" and not node.record.prefix:
            twins.setdefault(node.record.prompt_chain, []).append(node)
    return frozenset(
        node.record.step_id
        for group in twins.values()
        for node in group
        if node.delivered
        and node.record.call_id not in continued
        and (node.record.step_id in replaced or any(twin.children for twin in group))
    )
