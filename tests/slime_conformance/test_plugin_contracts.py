"""slime's own plugin contract tests, pointed at our hooks."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slime_conformance.checkout import slime_module, slime_path

slime_module("slime.ray.rollout")

ROOT = Path(__file__).resolve().parents[2]
OURS = "trainer_hooks.slime"
PLACED = "tests.slime_conformance.contract_hooks"

CONTRACTS = {
    "test_plugin_runtime_hook_contracts.py": {
        "CUSTOM_ROLLOUT_LOG_FUNCTION_PATH": f"{PLACED}.log_rollout_data",
        "CUSTOM_REWARD_POST_PROCESS_PATH": f"{PLACED}.reward_post_process",
        "CUSTOM_CONVERT_SAMPLES_TO_TRAIN_DATA_PATH": f"{PLACED}.convert_samples_to_train_data",
    },
    "test_plugin_path_loading_contracts.py": {
        "DYNAMIC_SAMPLING_FILTER_PATH": f"{OURS}.filters.check_reward_nonzero_std",
        "DATA_SOURCE_PATH": f"{OURS}.data_source.FanOutDataSource",
    },
}


@pytest.mark.parametrize("file", CONTRACTS)
def test_slimes_contract_tests_pass_with_our_hooks(file: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{slime_path()}{os.pathsep}{ROOT}"}
    environment |= {f"SLIME_CONTRACT_{name}": path for name, path in CONTRACTS[file].items()}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/plugin_contracts/{file}"],
        cwd=slime_path(),
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout) and "failed" not in done.stdout


@pytest.mark.parametrize(
    ("path", "placed"),
    [
        (f"{OURS}.log_helpers.log_rollout_data", f"{PLACED}.log_rollout_data"),
        (f"{OURS}.reward_post_process.reward_post_process", f"{PLACED}.reward_post_process"),
        (f"{OURS}.convert_samples.convert_samples_to_train_data", f"{PLACED}.convert_samples_to_train_data"),
    ],
)
def test_the_hooks_have_the_parameters_that_the_contract_tests_saw(path: str, placed: str) -> None:
    load = slime_module("slime.utils.misc").load_function
    assert tuple(inspect.signature(load(path)).parameters) == tuple(inspect.signature(load(placed)).parameters)


@pytest.mark.parametrize(
    "path",
    [
        f"{OURS}.sync_rollout.generate_rollout_sync",
        f"{OURS}.partial_async_rollout.generate_rollout_partial_async",
        f"{OURS}.fully_async_rollout.generate_rollout_fully_async",
    ],
)
def test_rollout_functions_have_the_signature_of_slimes(path: str) -> None:
    """The contract test also runs them without arguments, which ours need; tests/trainer_hooks runs them."""
    load = slime_module("slime.utils.misc").load_function

    def shape(function: Any) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    assert shape(load(path)) == shape(load("slime.rollout.sglang_rollout.generate_rollout"))


def test_the_generate_function_has_the_signature_that_slime_passes_evaluation_to() -> None:
    """The contract test wants one sample back; ours is a list, as slime allows for fan-out."""
    function = slime_module("slime.utils.misc").load_function(f"{OURS}.blackbox_dispatch.generate")
    parameters = inspect.signature(function).parameters
    assert tuple(parameters) == ("args", "sample", "sampling_params", "evaluation")
    assert parameters["evaluation"].default is False and inspect.iscoroutinefunction(function)
