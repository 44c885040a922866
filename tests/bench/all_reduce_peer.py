"""The peers of tests/bench/all_reduce: torch's Gloo, or nothing but TCP.

    all_reduce_peer.py torch RANK WORLD FILE VALUES REPEATS     rank 0 prints {"seconds": […]}
    all_reduce_peer.py tcp VALUES REPEATS                       two processes that send each other as many bytes at once
"""

import json
import os
import socket
import sys
import threading
import time


def torch_ranks(rank, world, file, values, repeats):
    import torch
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{file}", rank=int(rank), world_size=int(world))
    tensor = torch.ones(int(values))
    seconds = []
    for _ in range(int(repeats) + 1):
        torch.distributed.barrier()
        begin = time.perf_counter()
        torch.distributed.all_reduce(tensor)
        seconds.append(time.perf_counter() - begin)
        tensor.fill_(1)
    if int(rank) == 0:
        print(json.dumps({"seconds": seconds[1:]}))
    torch.distributed.destroy_process_group()


def receive(connection, buffer):
    view = memoryview(buffer)
    while view:
        view = view[connection.recv_into(view):]


def tcp(values, repeats):
    """An all-reduce of two ranks sends and receives its values' bytes once on each: the same number, both ways at once."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child:
        connection, _ = listener.accept()
    else:
        connection = socket.create_connection(listener.getsockname())
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    out, into = bytearray(4 * int(values)), bytearray(4 * int(values))
    seconds = []
    for _ in range(int(repeats) + 1):
        connection.sendall(b"x")
        connection.recv(1)
        begin = time.perf_counter()
        thread = threading.Thread(target=receive, args=(connection, into))
        thread.start()
        connection.sendall(out)
        thread.join()
        seconds.append(time.perf_counter() - begin)
    if child:
        os.waitpid(child, 0)
        print(json.dumps({"seconds": seconds[1:]}))


if __name__ == "__main__":
    {"torch": torch_ranks, "tcp": tcp}[sys.argv[1]](*sys.argv[2:])
