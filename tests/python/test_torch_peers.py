"""Rank 0 of a PyTorch site takes the ranks' connections; strangers at its port are refused alone."""

import socket
import threading
import time
import unittest
from unittest import mock

try:
    from causeway.torch import _peers
except ImportError as error:
    raise unittest.SkipTest(str(error)) from None

WORLD = 3
KEY = bytes(range(32))


class PeersTest(unittest.TestCase):
    def setUp(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.listener.close)
        self.enterContext(mock.patch.object(_peers, "_KEY_S", 0.3))

    def dial(self, said, ends=False):
        stream = socket.create_connection(self.listener.getsockname())
        stream.sendall(said)
        if ends:
            stream.close()
        else:
            self.addCleanup(stream.close)

    def meet(self, timeout_s=10.0):
        peers = _peers._meet(self.listener, KEY, WORLD, timeout_s)
        for peer in peers.values():
            peer.close()
        return sorted(peers)

    def test_strangers_that_say_nothing_or_another_key_keep_no_rank_waiting(self):
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(36), KEY, KEY[:-1] + b"x" + bytes(4)):
            self.dial(said)
        self.dial(b"", ends=True)
        self.dial(KEY, ends=True)
        self.dial(KEY + (2).to_bytes(4, "big"))
        late = threading.Timer(0.5, self.dial, [KEY + (1).to_bytes(4, "big")])
        late.start()
        with self.assertLogs("causeway", "WARNING") as logged:
            self.assertEqual(self.meet(), [1, 2])
        late.join()
        self.assertEqual(len(logged.output), 7)
        for line in logged.output:
            self.assertRegex(line, r"expected the key of this site's ranks from 127\.0\.0\.1:\d+, got \d+ bytes without it: refused")

    def test_behind_more_strangers_than_there_are_places_the_ranks_still_come(self):
        for _ in range(40):
            self.dial(b"")
        for rank in (1, 2):
            self.dial(KEY + rank.to_bytes(4, "big"))
        with self.assertLogs("causeway", "WARNING") as logged:
            self.assertEqual(self.meet(), [1, 2])
        self.assertEqual(len(logged.output), 40)

    def test_a_rank_that_does_not_come_is_named(self):
        self.dial(KEY + (2).to_bytes(4, "big"))
        with self.assertRaisesRegex(TimeoutError, "expected all 3 ranks within 0.4 s, got none of rank 1"):
            self.meet(0.4)


if __name__ == "__main__":
    unittest.main()
