"""Turns the GGUF of SmolLM2-135M-Instruct into a checkpoint that SGLang loads. Run by the engine's interpreter.

    python make_smollm2.py MODEL.gguf TOKENIZER_DIR TARGET_DIR

Promise: every weight of the file is dequantised and has its place in the model, or the script fails. llama.cpp has
the rows of query and key projections in another order (each head's two rotary halves interleaved); that is undone.
"""

import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def main(source: Path, tokenizer: Path, target: Path) -> None:
    """Write config, weights and tokenizer files."""
    reader = gguf.GGUFReader(source)
    weights = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    config = read_config(
        reader, vocab_size=weights["token_embd.weight"].shape[0], tied="output.weight" not in weights
    )
    state = {
        hugging_face_name(name): torch.from_numpy(ordered(name, array, config).astype(np.float32))
        for name, array in weights.items()
    }
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state, strict=True)
    model.to(torch.bfloat16).save_pretrained(target)
    for file in tokenizer.iterdir():
        if file.is_file() and file.name != "config.json":
            shutil.copyfile(file, target / file.name)


def read_config(reader: gguf.GGUFReader, *, vocab_size: int, tied: bool) -> LlamaConfig:
    """The architecture as the file's header has it."""

    def value(key: str) -> float:
        return reader.fields[key].contents()

    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=value("llama.embedding_length"),
        intermediate_size=value("llama.feed_forward_length"),
        num_hidden_layers=value("llama.block_count"),
        num_attention_heads=value("llama.attention.head_count"),
        num_key_value_heads=value("llama.attention.head_count_kv"),
        max_position_embeddings=value("llama.context_length"),
        rms_norm_eps=value("llama.attention.layer_norm_rms_epsilon"),
        rope_theta=value("llama.rope.freq_base"),
        tie_word_embeddings=tied,
        bos_token_id=value("tokenizer.ggml.bos_token_id"),
        eos_token_id=value("tokenizer.ggml.eos_token_id"),
    )


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` as `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.{parts[3]}"
    return f"{WHOLE[parts[0]]}.{parts[1]}"


def ordered(name: str, array: np.ndarray, config: LlamaConfig) -> np.ndarray:
    """Rows as transformers has them: per head first one rotary half, then the other."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return array
    half = array.shape[0] // heads // 2
    return array.reshape(heads, half, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
