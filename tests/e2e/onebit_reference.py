"""1-bit Adam (arXiv 2102.02888, algorithm 1) in numpy: what the ranks of a site hold, step by step.

All arithmetic is float32, each line rounded as worker/optimizer/ says; sums over ranks are in their order. Momenta are cut
into ranges, one for each rank to own, and each range at the borders of tensors: a piece has one scale.
"""

import numpy

from splitmix import fma

F32 = numpy.float32


def compressed(values):
    """±‖values‖₂/√n, where zero counts as positive."""
    scale = F32(numpy.sqrt(numpy.sum(values.astype(numpy.float64) ** 2) / len(values)))
    return numpy.where(numpy.signbit(values), -scale, scale)


class OnebitAdam:
    def __init__(self, world, sizes, freeze_at, beta1=0.9, beta2=0.99, clip=0):
        """`sizes`: values of each tensor."""
        self.world, self.freeze_at = world, freeze_at
        self.beta1, self.beta2, self.clip = beta1, beta2, clip
        total = sum(sizes)
        self.m, self.v = numpy.zeros(total, F32), numpy.zeros(total, F32)
        self.residual = [numpy.zeros(total, F32) for _ in range(world)]  # δ of each rank
        self.owned = numpy.zeros(total, F32)  # δ̄ of all ranges
        borders = set(numpy.cumsum([0, *sizes]).tolist()) | {total * rank // world for rank in range(world + 1)}
        ends = sorted(borders)
        self.pieces = [slice(begin, end) for begin, end in zip(ends, ends[1:])]

    def step(self, t, gradients):
        """`gradients`: of each rank, the mean over its rows."""
        if t <= self.freeze_at:
            self.warm_up(gradients)
        else:
            self.compressed_step(gradients)

    def clip_factor(self, squares):
        norm = numpy.sqrt(squares)
        return F32(1) if self.clip == 0 or norm <= self.clip else F32(self.clip / norm)

    def momentum(self, gradient):
        return fma(gradient, F32(1 - self.beta1), self.m * F32(self.beta1))

    def warm_up(self, gradients):
        total = numpy.zeros_like(self.m)
        for rank, gradient in enumerate(gradients):
            share = gradient * F32(1 / self.world)
            total = share if rank == 0 else total + share
        total = total * self.clip_factor(numpy.sum(total.astype(numpy.float64) ** 2))
        self.m = self.momentum(total)
        self.v = fma(total * total, F32(1 - self.beta2), self.v * F32(self.beta2))

    def compressed_step(self, gradients):
        squares = [numpy.sum(gradient.astype(numpy.float64) ** 2) for gradient in gradients]
        factor = self.clip_factor(sum(squares) / self.world)
        reached = self.v != 0
        sent = []
        for rank, gradient in enumerate(gradients):
            own = numpy.where(reached, self.momentum(gradient * factor), F32(0))
            sent.append(self.compress(own, self.residual[rank], reached))
        if self.world == 1:
            self.m = own
            return
        average = sent[0]
        for values in sent[1:]:
            average = average + values
        average = numpy.where(reached, average * F32(1 / self.world), F32(0))
        self.m = numpy.where(reached, self.compress(average, self.owned, reached), F32(0))

    def compress(self, values, residual, reached):
        """Values with what was kept of earlier ones, compressed by pieces; keeps in `residual` what is lost now."""
        if self.world == 1:
            return values
        wanted = values + residual
        result = numpy.concatenate([compressed(wanted[piece]) for piece in self.pieces])
        residual[...] = numpy.where(reached, wanted - result, F32(0))
        return result
