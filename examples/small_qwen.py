"""The model of the examples: a small Hugging Face Qwen2, trained on the bytes of a text file."""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

LENGTH = 64


def rows(path):
    """The file's bytes, which are the tokens, in rows of LENGTH."""
    with open(path, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    return text[:len(text) // LENGTH * LENGTH].view(-1, LENGTH)


def new_model():
    return Qwen2ForCausalLM(Qwen2Config(
        vocab_size=256, hidden_size=64, intermediate_size=172, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, tie_word_embeddings=True))
