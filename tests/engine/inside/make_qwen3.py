"""Saves a tiny Qwen3 with random weights beside Qwen3's tokenizer. Run by the engine's interpreter.

    python make_qwen3.py TOKENIZER_DIR TARGET_DIR SEED

Promise: the same seed gives the same weights; two seeds give models of one shape that can replace each other by a
weight update. Weights are larger than at the start of a training run, so that the next token depends on the prompt.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

END_OF_TURN, END_OF_TEXT = 151645, 151643  # <|im_end|>, <|endoftext|>


def main(tokenizer: Path, target: Path, seed: int) -> None:
    """Write config, generation config, weights and tokenizer files."""
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=END_OF_TEXT,
        eos_token_id=END_OF_TURN,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(target)
    for file in tokenizer.iterdir():
        if file.is_file():
            shutil.copyfile(file, target / file.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
