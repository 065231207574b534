"""Our hooks against slime itself: its conversion, schedule, reducer, loss, consumers and plugin contract tests.

Skipped unless `SLIME_PATH` names a checkout of slime, and where what slime imports is not installed. How to run:

    SLIME_PATH=/path/to/slime python -m pytest --confcutdir=tests/slime_conformance tests/slime_conformance

in an environment (Python >= 3.12) with torch, ray, transformers, pillow, aiohttp, httpx, pylatexenc, pyyaml, tqdm,
wandb, tensorboard, pytest, pytest-asyncio and hypothesis; megatron-core for `test_loss.py`. No GPU, no sglang.
`--confcutdir` leaves out the fixtures of tests/, which need the sidecar.
"""
