"""Conway's game of life on a torus, cut into blocks: mpirun -n 4 python life_plain.py [STEPS]"""

import hashlib
import sys

import numpy as np
from mpi4py import MPI

N, M = 90, 70


def soup(rows, columns):
    """Return the first generation of a block: alive or dead by its place alone."""
    i, j = np.ogrid[rows[0] : rows[1], columns[0] : columns[1]]
    return ((i * 7919 + j * 104729 + i * j * 31) % 1000 < 350).astype(np.uint8)


def part(cells, parts, at):
    """Return where one of so many parts of an axis begins and ends."""
    return tuple(cells // parts * k + min(k, cells % parts) for k in (at, at + 1))


def exchange(comm, cells, up, down, left, right):
    """Fill the halo: rows first, then columns, which bring the corners along."""
    for here, there, sent, filled in (
        (up, down, np.s_[1, 1:-1], np.s_[-1, 1:-1]),
        (down, up, np.s_[-2, 1:-1], np.s_[0, 1:-1]),
        (left, right, np.s_[:, 1], np.s_[:, -1]),
        (right, left, np.s_[:, -2], np.s_[:, 0]),
    ):
        edge = np.empty(cells[filled].shape, cells.dtype)
        comm.Sendrecv(np.ascontiguousarray(cells[sent]), here, recvbuf=edge, source=there)
        cells[filled] = edge


def generation(cells):
    """Return the next generation of the inner cells."""
    n, m = cells.shape
    around = sum(
        cells[1 + di : n - 1 + di, 1 + dj : m - 1 + dj]
        for di in (-1, 0, 1)
        for dj in (-1, 0, 1)
        if (di, dj) != (0, 0)
    )
    return (around == 3) | ((around == 2) & (cells[1:-1, 1:-1] == 1))


class Life:
    def build(self, comm):
        size = comm.size
        columns = max(c for c in range(1, size + 1) if c * c <= size and size % c == 0)
        rows = size // columns
        row, column = comm.rank % rows, comm.rank // rows
        self.neighbours = (
            (row - 1) % rows + rows * column,
            (row + 1) % rows + rows * column,
            row + rows * ((column - 1) % columns),
            row + rows * ((column + 1) % columns),
        )
        self.comm, self.box = comm, (part(N, rows, row), part(M, columns, column))
        self.cells = np.zeros([b - a + 2 for a, b in self.box], np.uint8)
        self.cells[1:-1, 1:-1] = soup(*self.box)

    def step(self):
        exchange(self.comm, self.cells, *self.neighbours)
        self.cells[1:-1, 1:-1] = generation(self.cells)

    def finish(self):
        parts = self.comm.gather((self.box, self.cells[1:-1, 1:-1].copy()))
        if self.comm.rank == 0:
            torus = np.zeros((N, M), np.uint8)
            for (rows, columns), part in parts:
                torus[slice(*rows), slice(*columns)] = part
            digest = hashlib.sha256(torus.tobytes()).hexdigest()
            print(f"{self.comm.size} ranks, {torus.sum()} alive, sha256 {digest}", flush=True)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    life = Life()
    life.build(MPI.COMM_WORLD)
    for _ in range(steps):
        life.step()
    life.finish()
