"""Run the stand-in alone: `python -m tests.fake_sglang --port 30000 --tokenizer tokenizer.json`.

Promise: prints its URL on one line, serves replies derived from a hash of each prompt (or `--reply TEXT`)
until SIGINT or SIGTERM. Concurrency: one event loop.
"""

import argparse
import asyncio
import signal

from tests.fake_sglang import FakeSGLang, Reply, Timings


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fake_sglang", description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: a free one (default)")
    parser.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json; without it replies carry no text")
    parser.add_argument("--model-path", default="fake", help="what /model_info and /v1/models report")
    parser.add_argument("--vocab-size", type=int, help="default: the tokenizer's, else 32000")
    parser.add_argument("--eos-token-id", type=int, action="append", default=[], help="repeatable")
    parser.add_argument("--context-length", type=int, default=32768)
    parser.add_argument("--incremental", action="store_true", help="--incremental-streaming-output of SGLang")
    parser.add_argument("--no-version-spans", action="store_true", help="as SGLang before 0.5.19")
    parser.add_argument("--weight-version", default="default")
    parser.add_argument("--api-key")
    parser.add_argument("--admin-api-key")
    parser.add_argument("--reply", metavar="TEXT", help="answer this to everything (needs --tokenizer)")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds per id, with --reply")
    parser.add_argument("--real-timings", action="store_true", help="SGLang's own waits instead of quick ones")
    return parser.parse_args()


async def serve(arguments: argparse.Namespace) -> None:
    """Until a signal comes."""
    engine = FakeSGLang(
        vocab_size=arguments.vocab_size or (None if arguments.tokenizer else 32000),
        eos_token_ids=arguments.eos_token_id,
        tokenizer_path=arguments.tokenizer,
        model_path=arguments.model_path,
        incremental=arguments.incremental,
        context_length=arguments.context_length,
        api_key=arguments.api_key,
        admin_key=arguments.admin_api_key,
        version_spans=not arguments.no_version_spans,
        weight_version=arguments.weight_version,
        timings=Timings.real() if arguments.real_timings else Timings(),
        host=arguments.host,
        port=arguments.port,
    )
    if arguments.reply is not None:
        finish = "stop" if arguments.eos_token_id else "length"
        reply = Reply(text=arguments.reply, finish=finish, delay=arguments.delay)
        engine.script = lambda _: reply
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with engine:
        print(f"fake SGLang on {engine.url}", flush=True)
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(serve(parse_arguments()))
