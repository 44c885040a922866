"""The model of the examples: a small Hugging Face Qwen2, trained on the bytes of a text file."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

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


def tokenizer():
    """Token i is byte i, under the names that bytes have in tokenizers of bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    bytewise = Tokenizer(models.BPE(vocab=names, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bytewise, pad_token=chr(256), clean_up_tokenization_spaces=False)
