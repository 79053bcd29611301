# SPDX-License-Identifier: Apache-2.0

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyMalleableMpi(PythonPackage):
    """Malleable MPI in Python: dmr (resizing running mpi4py programs), mpdata (3D MPDATA
    advection), rms (a resource manager that uses both)."""

    pypi = "malleable-mpi/malleable_mpi-0.1.0.tar.gz"

    license("Apache-2.0")

    # Not released yet: build it from a checkout (docs/install.md). `spack checksum` adds the hash.
    version("0.1.0")

    variant("mpdata", default=True, description="3D MPDATA advection and its plots")
    variant("rms", default=False, description="Resource manager, live page, simulator")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-hatchling@1.27:", type="build")

    with default_args(type=("build", "run")):
        depends_on("py-h5py@3.11:")
        depends_on("py-mpi4py@4.1:")
        depends_on("py-msgspec@0.19:")
        depends_on("py-numpy@2:")
        depends_on("py-xxhash@3.4.1:")

        with when("+mpdata"):
            depends_on("py-matplotlib@3.9:")
            depends_on("py-numba@0.61:")
            depends_on("py-rich@13.7:")

        with when("+rms"):
            depends_on("py-httptools@0.6.4:")
            depends_on("py-jinja2@3.1:")
            depends_on("py-matplotlib@3.9:")
            depends_on("py-prometheus-client@0.22:")
            depends_on("py-rich@13.7:")
            depends_on("py-shtab@1.13:")
            depends_on("py-starlette@1:")
            depends_on("py-textual@3:")
            depends_on("py-uvicorn@0.30:")
            depends_on("py-uvloop@0.21:")
