"""A PyTorch model as a run sees it: which tensors are synced, which are only compared, and the names of all.

    optimizer.param_groups ─► objects that are trained ─┐
    model.named_parameters ─► names, shapes, ties ──────┴─► Model: tensors of the manifest, parameters to be moved

Parameters are collected once: after a forward alone, FSDP2's root has plain tensors in place of its parameters. Where
they lie is looked up at each move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from causeway import _library, names
from causeway._log import LOGGER
from causeway.errors import ConfigError, mismatch
from causeway.torch import _world
from causeway.torch._boxes import Table

Held = TypeVar("Held")
SYNCED_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass
class Model:
    """The tensors as causeway.h's JSON lists them, and those that are synced, by their index in it."""

    tensors: list[dict[str, object]] = field(default_factory=list)
    synced: dict[int, torch.Tensor] = field(default_factory=dict)  # index in `tensors`: the parameter or its master
    copies: dict[int, torch.Tensor] = field(default_factory=dict)  # of those with masters: the model's own parameter
    frozen: dict[int, torch.Tensor] = field(default_factory=dict)  # that are compared by the values that are here
    listed: dict[int, torch.Tensor] = field(default_factory=dict)  # the model's own parameter of each, tied ones too
    own: dict[str, torch.Tensor] = field(default_factory=dict)  # by name, the site's, of which the run does not know
    buffers: dict[int, tuple[dict[str, Any], str]] = field(default_factory=dict)  # that are synced: where a module has each

    def numbered(self, table: Table) -> Model:
        """The same model, by the site's tensor numbers and with the site's list."""
        def by_site(tensors: Mapping[int, Held]) -> dict[int, Held]:
            return {table.index(str(self.tensors[index]["name"])): tensor for index, tensor in tensors.items()}
        return Model(table.tensors, by_site(self.synced), by_site(self.copies), by_site(self.frozen),
                     by_site(self.listed), self.own, by_site(self.buffers))

    def names(self) -> dict[str, int]:
        """{name: index} of the synced tensors."""
        return {str(self.tensors[index]["name"]): index for index in self.synced}

    def trained(self) -> dict[int, torch.Tensor]:
        """The synced ones without buffers, which change in each forward."""
        return {index: tensor for index, tensor in self.synced.items() if index not in self.buffers}

    def take_buffers(self) -> None:
        """Synced buffers that the script has replaced, instead of writing into them, are written, and back in their place."""
        for index, (holder, key) in self.buffers.items():
            held, current = self.synced[index], holder.get(key)
            if current is not held:
                if current is None or current.shape != held.shape:
                    raise mismatch(f"buffer {self.tensors[index]['name']}", f"shape {list(held.shape)}, as when DiLoCo was made",
                                   "none" if current is None else list(current.shape))
                held.copy_(current)
                holder[key] = held

    def values(self) -> int:
        """The number of synced values, over all ranks."""
        return sum(tensor.numel() for tensor in self.synced.values())


def local(parameter: torch.Tensor) -> torch.Tensor:
    """The tensor that holds the values now, detached: of a DTensor (FSDP2) the part that is here."""
    to_local = getattr(parameter, "to_local", None)
    with torch.no_grad():
        return (parameter.detach() if to_local is None else to_local()).detach()


def first_values(parts: Iterable[tuple[torch.Tensor, int]]) -> torch.Tensor:
    """A copy of this many first values of each tensor, float32, where the first of them is; those elsewhere are left out."""
    held = [(local(tensor), count) for tensor, count in parts]
    return torch.cat([each.reshape(-1)[:count].float() for each, count in held if each.device == held[0][0].device])


def collect(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], masters: Mapping[str, torch.Tensor],
            kinds: Mapping[str, str], trained_later: Sequence[str] = (), own: Sequence[str] = (),
            buffers: str = "local") -> Model:
    """Lists the model's parameters, but for the site's `own`, and its buffers if they are "mean"; "alone": there are no other
    sites to compare with. Raises ConfigError that names the first that cannot take part."""
    every = list(_named(model))
    local_names = _names_of("local", [name for name, _ in every], own)
    named = [(name, parameter) for name, parameter in every if name not in local_names]
    masters = {names.plain(name): master for name, master in masters.items() if names.plain(name) not in local_names}
    kinds = {names.plain(name): kind for name, kind in kinds.items()}
    later = _names_of("trained_later", [name for name, _ in named], trained_later)
    of_optimizer = {id(p): p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    trained = set(of_optimizer) if optimizers else {id(p) for _, p in named if p.requires_grad}
    _check_masters(named, masters)
    _check_known(every, of_optimizer, masters)
    for name in kinds:
        if name not in {listed for listed, _ in named}:
            raise mismatch("kinds", "names of the model's parameters", name, tensor=name)
    result = Model(own={name: parameter for name, parameter in every if name in local_names})
    first_of: dict[object, dict[str, object]] = {}
    ties = _ties_of(named)
    untrained: list[str] = []
    for name, parameter in named:
        tensor: dict[str, object] = {"name": name, "shape": list(parameter.shape)}
        if name in kinds:
            tensor["kind"] = kinds[name]
        index = len(result.tensors)
        result.tensors.append(tensor)
        result.listed[index] = parameter
        first = first_of.setdefault(values_of(parameter), tensor)
        if first is not tensor:
            tensor.update(alias_of=first["name"], dtype=first["dtype"])
            continue
        tied = ties[values_of(parameter)]  # it is trained if one of them is, by whatever name
        master = next((masters[each] for each in tied if each in masters), None)
        moved = next((each for each in tied.values() if each.requires_grad and id(each) in trained), None)
        if master is not None or moved is not None or not later.isdisjoint(tied):
            moved = master if master is not None else moved if moved is not None else parameter
            tensor.update(dtype=_synced_dtype(name, moved))
            result.synced[index] = moved
            if master is not None:
                result.copies[index] = parameter
        else:
            if parameter.requires_grad:
                untrained.append(name)
            tensor.update(dtype=_dtype_name(parameter), frozen=True)
            if buffers == "alone":
                continue
            if parameter.dtype in SYNCED_DTYPES and parameter.device.type != "meta":
                result.frozen[index] = parameter
            else:
                _add_digest(tensor, name, parameter)
    if buffers == "mean":
        for name, holder, key in buffers_of(model):
            if holder[key].dtype in SYNCED_DTYPES:
                result.synced[len(result.tensors)], result.buffers[len(result.tensors)] = holder[key], (holder, key)
                result.tensors.append({"name": name, "shape": list(holder[key].shape), "kind": "buffer",
                                       "dtype": _synced_dtype(name, holder[key])})
    _check_overlaps(result)
    _warn(model, untrained, bool(result.buffers) or buffers == "alone")
    if not result.synced:
        raise mismatch("model", "a parameter that is trained", "none: no parameter has requires_grad and is in the "
                       "optimizer")
    return result


def every_parameter(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """By each of its names, also where a class has a named_parameters of its own without that argument."""
    try:
        return model.named_parameters(remove_duplicate=False)
    except TypeError:
        return nn.Module.named_parameters(model, remove_duplicate=False)


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters by their names in the unwrapped model, tied ones under each of their names."""
    seen: dict[str, tuple[str, torch.Tensor]] = {}
    for wrapped_name, parameter in every_parameter(model):
        name = names.plain(wrapped_name)
        if nn.parameter.is_lazy(parameter):
            raise mismatch(f"parameter {name}", "values", "those of a lazy module, which has seen no batch",
                           "run one batch through the model first", tensor=name)
        if parameter.numel() == 0:
            continue  # nothing of it could cross
        if name in seen and seen[name][1] is parameter:
            continue  # a wrapper that has the module twice
        if name in seen:
            raise mismatch("model", f"names that differ without {names.STRIPPED}", f"{seen[name][0]} and {wrapped_name}",
                           tensor=name)
        seen[name] = wrapped_name, parameter
        yield name, parameter


def _ties_of(named: Iterable[tuple[str, torch.Tensor]]) -> dict[object, dict[str, torch.Tensor]]:
    """{values: {name: parameter}} of those that are the same values."""
    ties: dict[object, dict[str, torch.Tensor]] = {}
    for name, parameter in named:
        ties.setdefault(values_of(parameter), {})[name] = parameter
    return ties


def _names_of(what: str, listed: Sequence[str], given: Sequence[str]) -> set[str]:
    """The names that are among those given, or below a module of that name."""
    if isinstance(given, str):
        raise mismatch(what, "a list of names of parameters or modules", f"the string {given!r}")
    found: set[str] = set()
    for each in given:
        below = {name for name in listed if names.is_among(name, (names.plain(each),))}
        if not below:
            raise mismatch(what, "names of the model's parameters or modules", f"{each!r}", tensor=str(each))
        found |= below
    return found


def values_of(parameter: torch.Tensor) -> object:
    """Equal for parameters that are the same values: one object, or several with the same part of one storage."""
    if hasattr(parameter, "device_mesh") or parameter.layout != torch.strided or parameter.device.type == "meta":
        return id(parameter)
    if parameter.numel() == 0 or nn.parameter.is_lazy(parameter):
        return id(parameter)
    try:
        return parameter.data_ptr(), parameter.dtype, tuple(parameter.shape), parameter.stride()
    except RuntimeError:  # a subclass without plain memory
        return id(parameter)


def _is_dense(tensor: torch.Tensor) -> bool:
    """It has all values between its first and its last, in whatever order of dimensions."""
    by_stride = sorted(range(tensor.dim()), key=lambda dimension: -tensor.stride()[dimension])
    return tensor.permute(by_stride).is_contiguous()


def _check_overlaps(model: Model) -> None:
    """Raises ConfigError for trained tensors that share some of their values, which would be moved twice."""
    ranges: list[tuple[str, int, int, str]] = []
    for index, tensor in model.synced.items():
        if isinstance(values_of(tensor), tuple) and _is_dense(tensor):
            begin = tensor.data_ptr()
            ranges.append((str(tensor.device), begin, begin + tensor.numel() * tensor.element_size(),
                           str(model.tensors[index]["name"])))
    ranges.sort()
    for (device, _, end, name), (other_device, begin, _, other) in zip(ranges, ranges[1:]):
        if device == other_device and begin < end:
            raise mismatch(f"parameter {other}", "values of its own", f"some that are also those of {name}",
                           "tie them as one Parameter, of one shape", tensor=other)


def _check_masters(named: Iterable[tuple[str, torch.Tensor]], masters: Mapping[str, torch.Tensor]) -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in named}
    for name, master in masters.items():
        if name not in shapes:
            raise mismatch("params", "names of the model's parameters", name, tensor=name)
        if not isinstance(master, torch.Tensor):
            raise mismatch(f"params[{name!r}]", "a tensor", type(master).__name__, tensor=name)
        if tuple(master.shape) != shapes[name]:
            raise mismatch(f"params[{name!r}]", f"shape {list(shapes[name])}", list(master.shape), tensor=name)


def _check_known(named: Iterable[tuple[str, torch.Tensor]], of_optimizer: Mapping[int, torch.Tensor],
                 masters: Mapping[str, torch.Tensor]) -> None:
    known = {id(parameter) for _, parameter in named} | {id(master) for master in masters.values()}
    unknown = [parameter for key, parameter in of_optimizer.items() if key not in known and parameter.numel() > 0]
    if unknown:
        raise mismatch("optimizer", "the model's own parameters",
                       f"{len(unknown)} others, the first of shape {list(unknown[0].shape)}",
                       "of a loss or a second module with parameters pass nn.ModuleList([model, loss]) as the model, of an "
                       "optimizer with masters of its own params={name: master}")


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _synced_dtype(name: str, tensor: torch.Tensor) -> str:
    if tensor.device.type == "meta":
        raise mismatch(f"parameter {name}", "values", "a tensor on the device meta", "materialise the model first",
                       tensor=name)
    if tensor.layout != torch.strided:
        raise mismatch(f"parameter {name}", "a dense tensor", tensor.layout, tensor=name)
    dtype = SYNCED_DTYPES.get(tensor.dtype)
    if dtype is None:
        raise mismatch(f"parameter {name}", "float32, bfloat16 or float16 of a tensor that is trained",
                       _dtype_name(tensor), "train it as one of them, pass params={name: master}, or freeze it",
                       tensor=name)
    if hasattr(tensor, "device_mesh"):
        _world.check_sharded_version()
    return dtype


def _add_digest(tensor: dict[str, object], name: str, parameter: torch.Tensor) -> None:
    try:
        values = local(parameter).cpu().contiguous()
        digest = _library.load().digest(values.data_ptr(), values.numel() * values.element_size())
    except (NotImplementedError, RuntimeError) as error:  # quantised subclasses that have no plain memory
        LOGGER.warning("frozen parameter %s is not compared with the other sites': %s", name, error)
        return
    tensor["values_digest"] = f"{digest:016x}"


def buffers_of(model: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(plain name, where it is, its name there) of the buffers that are in a state_dict and have values."""
    for path, each in model.named_modules():
        for key, buffer in each._buffers.items():
            if buffer is not None and key not in each._non_persistent_buffers_set and buffer.numel() > 0:
                yield names.plain(f"{path}.{key}".lstrip(".")), each._buffers, key


def _warn(model: nn.Module, untrained: Sequence[str], buffers: bool) -> None:
    if untrained:
        LOGGER.warning("%d parameters have requires_grad but are in no optimizer that was passed: taken for frozen; the "
                       "first is %s", len(untrained), untrained[0])
    # PyTorch has no public name for the base of its batch norms.
    norms = [name for name, module in model.named_modules()
             if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats and not buffers]
    if norms:
        LOGGER.warning("running statistics of %d normalisations, the first %s, stay this site's own", len(norms),
                       names.plain(norms[0]))


def check_unsupported(model: object) -> nn.Module:
    """The model, unless it is an engine that hides its parameters: ConfigError says what to pass instead."""
    if type(model).__module__.split(".")[0] == "deepspeed":
        raise mismatch("model", "a torch.nn.Module", type(model).__name__,
                       "pass engine.module, and params={name: master} with the float32 masters")
    if not isinstance(model, nn.Module):
        raise mismatch("model", "a torch.nn.Module", type(model).__name__)
    for name, module in model.named_modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ConfigError(f"model: expected parameters that stay apart, got FullyShardedDataParallel at "
                              f"{name or 'its root'}: shard with torch.distributed.fsdp.fully_shard instead, and pass "
                              "the sharded model", expected="fully_shard", got="FullyShardedDataParallel")
    return model
