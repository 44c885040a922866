"""The model of torchtitan's examples: two layers of its smallest Qwen3, trained on the bytes of a text file."""

from dataclasses import dataclass

import torch
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.qwen3.config_registry import qwen3_debugmodel


class Bytes(BaseTokenizer):
    """Bytes are the tokens."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path):
        super().__init__()

    def encode(self, text):
        return list(text.encode())

    def decode(self, tokens):
        return bytes(tokens).decode()

    def get_vocab_size(self):
        return 256


class Rows(torch.utils.data.IterableDataset):
    """Rows of the text, each from a place drawn at random, for ever."""

    def __init__(self, path, length):
        with open(path, "rb") as file:
            self.text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
        self.length = length

    def __iter__(self):
        while True:
            first = torch.randint(len(self.text) - self.length, ()).item()
            row = self.text[first:first + self.length + 1]
            yield {"input": row[:-1], "positions": torch.arange(self.length)}, row[1:]


class Loader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, tokenizer, seq_len, local_batch_size, **settings):
        super().__init__(Rows(config.dataset_path, seq_len), dp_rank, dp_world_size, batch_size=local_batch_size)


def new_config(path):
    """A config of torchtitan's Trainer: 200 steps."""
    config = qwen3_debugmodel()
    config.model_spec.model.layers = config.model_spec.model.layers[:2]
    config.tokenizer, config.dataloader = Bytes.Config(), Loader.Config(dataset_path=path)
    config.training.seq_len, config.training.steps = 64, 200
    config.training.disable_cuda_graphs = True
    config.metrics.log_freq = 20
    return config
