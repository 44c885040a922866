"""The files that loaders need beside a model's weights: its configuration, and the tokenizer's.

    PreTrainedModel, assets= ─► files_of ─► {name: contents} ─► the run, with the first site ─► causewayctl export
"""

from __future__ import annotations

import copy
import os
import pathlib
import tempfile
from typing import Any

from torch import nn

from causeway._log import LOGGER
from causeway.errors import mismatch

# As the coordinator takes them: texts and tokenizers, no code and no weights.
_EXTENSIONS = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".bpe", ".vocab", ".md")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
_MOST_BYTES = 64 << 20


def files_of(module: nn.Module, assets: Any) -> dict[str, bytes]:
    """Those of a Hugging Face or peft model, and of `assets`: a folder, something with save_pretrained, or a list of them.

    Raises ConfigError if `assets` are none of these.
    """
    given = [] if assets is None else list(assets) if isinstance(assets, (list, tuple)) else [assets]
    files: dict[str, bytes] = {}
    for each in given:
        files.update(_of_folder(pathlib.Path(each)) if isinstance(each, (str, os.PathLike)) else _saved(each))
    for each in _configurations(module):
        files.update(_saved(each))
    return files


def _configurations(module: Any) -> list[Any]:
    while (inner := unwrapped(module)) is not None:
        module = inner
    adapters = getattr(module, "peft_config", None)
    if adapters and hasattr(module, "base_model"):
        return [adapters["default"]] if "default" in adapters else []
    if not hasattr(module, "save_pretrained") or not hasattr(getattr(module, "config", None), "save_pretrained"):
        return []
    config = copy.deepcopy(module.config)
    config.architectures = [next(each for each in type(module).__mro__ if each.__module__.split(".")[0] != "torch").__name__]
    generation = getattr(module, "generation_config", None)
    return [config, *([generation] if hasattr(generation, "save_pretrained") else [])]


def _saved(each: Any) -> dict[str, bytes]:
    if not hasattr(each, "save_pretrained"):
        raise mismatch("assets", "a folder, or something with save_pretrained such as a tokenizer, or a list of these",
                       type(each).__name__)
    with tempfile.TemporaryDirectory() as folder:
        try:
            each.save_pretrained(folder)
        except Exception as error:  # another library's: the run goes on without
            if hasattr(each, "to_json_file") and hasattr(each, "_from_model_config"):  # loads what it does not save
                each.to_json_file(os.path.join(folder, "generation_config.json"))
            else:
                LOGGER.warning("exports of the run lack the model's %s, which could not be saved: %s: %s", type(each).__name__,
                               type(error).__name__, error)
        return _of_folder(pathlib.Path(folder))


def _of_folder(folder: pathlib.Path) -> dict[str, bytes]:
    if not folder.is_dir():
        raise mismatch("assets", "a folder with a tokenizer's files", f"{folder}, which is none")
    files, other = {}, []
    for path in sorted(folder.iterdir()):
        if path.name.endswith((*_WEIGHTS, ".index.json")) or path.name.startswith("."):
            continue
        if not path.name.endswith(_EXTENSIONS) or not path.is_file():
            other.append(path.name)
        elif path.stat().st_size > _MOST_BYTES:
            LOGGER.warning("left out of the run's exports: %s has more than %d bytes", path, _MOST_BYTES)
        else:
            files[path.name] = path.read_bytes()
    if other:
        LOGGER.warning("left out of the run's exports: %s; expected files that end in %s", ", ".join(other),
                       ", ".join(_EXTENSIONS))
    return files


def unwrapped(module: nn.Module) -> Any:
    """The module in a wrapper (DDP, torch.compile, Lightning's Fabric); None: it is none."""
    if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return module.module
    return getattr(module, "_orig_mod", None) or getattr(module, "_forward_module", None)
