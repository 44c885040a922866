"""The logs of training: TensorBoard's event files, and offline runs of Weights & Biases."""

import json
import pathlib


def of_tensorboard(folder):
    """{name: [(step, number or text)]} of all event files below the folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    charts = {}
    for file in pathlib.Path(folder).rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file)).Reload()
        for name in events.Tags()["scalars"]:
            charts.setdefault(name, []).extend((event.step, event.value) for event in events.Scalars(name))
        for name in events.Tags()["tensors"]:
            charts.setdefault(name.removesuffix("/text_summary"), []).extend(
                (event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors(name))
    return charts


def of_wandb(folder):
    """{name: [(Lightning's or the Trainer's global_step, value)]} of all offline runs below the folder."""
    from wandb.proto import wandb_internal_pb2
    charts = {}
    for file in pathlib.Path(folder).rglob("*.wandb"):
        for data in _log_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name, value in row.items():
                step = row.get("trainer/global_step", row.get("train/global_step"))
                charts.setdefault(name, []).append((step, value))
    return charts


def _log_records(data):
    """The records of a file in LevelDB's log format, whose first 7 bytes are W&B's own."""
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        record += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""
