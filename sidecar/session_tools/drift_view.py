"""The drift report for people, in 80 columns: a row per stretch, a token per line, and the totals. Stateless."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sidecar.session_tools.drift import SessionDrift
from sidecar.terminal import quoted, visible
from sidecar.tito.codec import Codec
from sidecar.tito.drift import DriftTotals

_MOST_STRETCHES = 20
_MOST_TOKENS = 6


def print_drift(console: Console, drift: SessionDrift) -> None:
    """Print the report."""
    names = ", ".join(visible(one.name) for one in drift.tokenizers) or "none"
    console.print(Text(f"Session {visible(drift.session_id)} ({drift.state}), tokenizer {names}", style="bold"))
    for warning in drift.warnings:
        console.print(Text(f"Beware: {visible(warning)}.", style="bold yellow"))
    if drift.without_reply:
        console.print(f"{drift.without_reply} of its steps gave no reply and are left out.")
    found = [
        (number, turn.tokenizer.codec, stretch)
        for number, turn in enumerate(drift.turns, 1)
        for stretch in turn.reply.stretches
    ]
    if found:
        table = Table(box=None, padding=(0, 1), title_justify="left", show_edge=False)
        table.add_column("turn", justify="right")
        table.add_column("position", justify="right")
        table.add_column("sampled", overflow="fold")
        table.add_column("decoded and encoded again", overflow="fold")
        for number, codec, stretch in found[:_MOST_STRETCHES]:
            cells = (token_lines(codec, stretch.sampled), token_lines(codec, stretch.encoded))
            table.add_row(str(number), str(stretch.position), *cells)
        console.print()
        console.print(table)
        if len(found) > _MOST_STRETCHES:
            console.print(f"... and {len(found) - _MOST_STRETCHES} more; --json lists all.")
    console.print()
    totals = Table(box=None, padding=(0, 1), show_header=False, show_edge=False)
    for name, value in drift_rows(drift.totals):
        totals.add_row(name, value)
    console.print(totals)


def drift_rows(totals: DriftTotals) -> list[tuple[str, str]]:
    """What re-tokenising would have done, as names and values of a table."""
    return [
        ("changed by re-tokenising", f"{totals.turns_affected} of {totals.turns} replies"),
        ("tokens changed", f"{totals.tokens_changed:,} of {totals.tokens_sampled:,} sampled"),
        ("logprobs misaligned", f"{totals.logprobs_misaligned:,} of {totals.tokens_sampled:,} sampled"),
        ("trained tokens affected", f"{totals.trained_tokens_affected:,} of {totals.tokens_trained:,} trained"),
    ]


def token_lines(codec: Codec, ids: Sequence[int]) -> Text:
    """A token per line, its text and its id."""
    lines = [f"{quoted(codec.decode([index]))} {index}" for index in ids[:_MOST_TOKENS]]
    if len(ids) > _MOST_TOKENS:
        lines.append(f"... and {len(ids) - _MOST_TOKENS} more")
    return Text("\n".join(lines) or "nothing")
