"""Models whose real tokenizer a registry has, each with a real template that fits it. Data and loading only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from tokenizers import Tokenizer

from sidecar.tito.model import Model, ModelText, build_model
from tests.conformance.corpus import samples
from tests.conformance.vocabularies import SPECIAL, vocabulary
from tests.support.npm import npm_tokenizer


@dataclass(frozen=True, slots=True)
class RealModel:
    """`template` is a name in the corpus, "" for the tokenizer's own. `stops` as in `generation_config.json`.
    `tools`: the template prints calls and results; `bos`: it prints one."""

    vocabulary: str
    template: str
    stops: tuple[str, ...]
    outcome: str = "exact"
    tools: bool = True
    bos: bool = True


_DEEPSEEK = ("<｜end▁of▁sentence｜>",)
MODELS: dict[str, RealModel] = {
    "qwen3": RealModel("qwen3", "", ("<|im_end|>", "<|endoftext|>"), bos=False),
    "deepseek_v3": RealModel("deepseek_v3", "", _DEEPSEEK, outcome="stateful"),
    "deepseek_v3_1": RealModel("deepseek", "deepseek-ai-DeepSeek-V3.1", _DEEPSEEK),
    "deepseek_v4": RealModel("deepseek", "deepseek-ai-DeepSeek-V4", _DEEPSEEK),
    "llama3_1": RealModel("llama3_1", "meta-llama-Llama-3.1-8B-Instruct", ("<|eot_id|>", "<|end_of_text|>")),
    "gemma3": RealModel("gemma3", "", ("<end_of_turn>", "<eos>"), tools=False),
    "gpt_oss": RealModel("gptoss", "openai-gpt-oss-120b", ("<|return|>", "<|call|>", "<|endoftext|>"), bos=False),
    "mistral_nemo": RealModel("tekken", "mistralai-Mistral-Nemo-Instruct-2407", ("</s>",)),
    "glm4_6": RealModel("glm4", "GLM-4.6", ("<|user|>", "<|observation|>", "<|endoftext|>"), bos=False),
    "kimi_k2": RealModel("kimi_k2", "moonshotai-Kimi-K2-Instruct-0905", ("<|im_end|>",), bos=False),
}


@cache
def loaded(name: str) -> tuple[Model, Tokenizer]:
    """The model as the sidecar would build it, and its tokenizer without the sidecar."""
    real = MODELS[name]
    words = vocabulary(real.vocabulary)
    stop_ids = frozenset(index for index in map(words.token_to_id, real.stops) if index is not None)
    assert len(stop_ids) == len(real.stops)
    text = ModelText(name, words, _template(real), SPECIAL[real.vocabulary], stop_ids)
    return build_model(text), words


def _template(real: RealModel) -> str:
    if real.template:
        return next(sample.source for sample in samples() if sample.name == real.template)
    config = json.loads((npm_tokenizer(real.vocabulary) / "tokenizer_config.json").read_text(encoding="utf-8"))
    return str(config["chat_template"])
