"""The table of who holds what: what each rank has of a range, where a shard's values have their places, and what is refused."""

import itertools
import unittest

import numpy

from causeway.errors import ConfigError
from causeway.torch._boxes import Box, Listing, Table, rows_of

NAME = {"name": "w", "dtype": "float32"}


def table(shape, boxes, **listed):
    return Table([Listing([{**NAME, "shape": list(shape), **listed}], {0: box}) for box in boxes])


def grid(shape, cuts):
    """Boxes that make up the shape, cut at these places of each dimension."""
    edges = [sorted({0, size, *at}) for size, at in zip(shape, cuts)]
    sides = [list(itertools.pairwise(edge)) for edge in edges]
    return [Box(tuple(a for a, _ in side), tuple(b - a for a, b in side)) for side in itertools.product(*sides)]


GRIDS = [((7, 3), ([2, 3], [])), ((6, 10), ([], [4])), ((6, 10), ([5], [1, 2])), ((5,), ([1, 4],)), ((3, 4, 5), ([], [1], [])),
         ((3, 4, 5), ([1], [], [2])), ((2, 3, 4, 5), ([], [1], [], [3]))]


class TableTest(unittest.TestCase):
    def test_parts_of_all_ranks_make_up_each_range(self):
        for shape, cuts in GRIDS:
            boxes = grid(shape, cuts)
            whole = numpy.arange(numpy.prod(shape))
            made = table(shape, boxes)
            row = int(numpy.prod(shape[1:]))
            for first, count in ((0, whole.size), (row, whole.size - row), *made.cuts(0, 0, whole.size, 2 * row)):
                values = numpy.full(count, -1)
                for box in boxes:
                    part = made.part(0, box, first, count)
                    if part is not None:
                        own = whole.reshape(shape)[box.slices()].reshape(-1)
                        place = values.reshape(part.view)[part.within]
                        place[...] = own[part.local].reshape(place.shape)
                self.assertEqual(values.tolist(), whole[first:first + count].tolist(), (shape, first, count))

    def test_a_shards_values_have_their_places(self):
        for shape, cuts in GRIDS:
            whole = numpy.arange(numpy.prod(shape)).reshape(shape)
            for box in grid(shape, cuts):
                places = [rows.first + row * rows.stride + column for rows in rows_of(box, shape)
                          for row in range(rows.rows) for column in range(rows.columns)]
                self.assertEqual(places, whole[box.slices()].reshape(-1).tolist(), (shape, box))

    def test_work_on_part_of_a_row_of_a_shard_is_refused(self):
        made = table((4, 3), grid((4, 3), ([2], [])))
        with self.assertRaisesRegex(ConfigError, "w: expected work on whole rows of 3 values, got values 1 to 4"):
            made.part(0, made.boxes[0][0], 1, 3)

    def test_shards_that_do_not_make_up_the_tensor_are_refused(self):
        with self.assertRaisesRegex(ConfigError, r"w: expected shards that make up its shape \[4, 3\], got rank 0 \[2, 3\]"):
            table((4, 3), [Box((0, 0), (2, 3)), None])

    def test_copies_of_a_frozen_shard_must_be_alike(self):
        tensor = {**NAME, "shape": [4], "frozen": True}
        halves = [Box((0,), (2,)), Box((2,), (2,))]
        listings = [Listing([tensor], {0: halves[rank % 2]}, {0: digest}) for rank, digest in enumerate((5, 7, 5, 7))]
        self.assertEqual(Table(listings).tensors[0]["values_digest"], f"{12:016x}")
        listings[3] = Listing([tensor], {0: halves[1]}, {0: 8})
        with self.assertRaisesRegex(ConfigError, "w: frozen values: expected those of rank 1, got others on rank 3"):
            Table(listings)

    def test_a_pipelines_model_is_the_union_in_the_order_of_ranks(self):
        stages = [Listing([{"name": name, "shape": [2]} for name in names], {0: Box((0,), (2,)), 1: Box((0,), (2,))})
                  for names in (("a", "b"), ("c", "d"), ("a", "b"))]
        made = Table(stages)
        self.assertEqual([tensor["name"] for tensor in made.tensors], ["a", "b", "c", "d"])
        self.assertEqual([sorted(made.holders(index)) for index in range(4)], [[0, 2], [0, 2], [1], [1]])
        self.assertEqual([made.first_of_stage(rank) for rank in range(3)], [True, True, False])
        self.assertEqual(made.tokens([10, 0, 20]), 30)

    def test_a_batch_that_ranks_share_counts_once(self):
        tensor = {**NAME, "shape": [2]}
        made = Table([Listing([tensor], {0: Box((0,), (2,))}, batch=batch) for batch in ("0,1", "0,1", "2,3", "2,3")])
        self.assertEqual(made.tokens([10, 10, 20, 20]), 30)


if __name__ == "__main__":
    unittest.main()
