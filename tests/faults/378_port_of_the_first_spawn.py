"""With Open MPI a second resize by spawn hung: its ranks had the port of the first one's parent."""

from __future__ import annotations

from dmr.boot.mpiexec import clean_environment

KEPT = {
    "HOME": "/home/me",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_MCA_btl": "^openib",
    "OMP_NUM_THREADS": "1",
}
OF_THE_LAUNCHER = """
OMPI_ARGV OMPI_COMMAND OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_NODE_RANK OMPI_COMM_WORLD_RANK
OMPI_COMM_WORLD_SIZE OMPI_FILE_LOCATION OMPI_NUM_APP_CTX OMPI_PARENT_PORT OMPI_TOOL_NAME
OMPI_UNIVERSE_SIZE OMPI_WORLD_LOCAL_SIZE OMPI_WORLD_SIZE PMIX_HOSTNAME PMIX_NAMESPACE PMIX_RANK
PMIX_SERVER_URI41 PRTE_LAUNCHED PMI_FD PMI_RANK HYDI_CONTROL_FD MPI_LOCALNRANKS
"""
"""Variables that the ranks of a spawned world of Open MPI 5.0.11 and of MPICH 5.0.2 have."""


def test_a_new_world_has_no_variable_of_another_launch() -> None:
    launch = dict.fromkeys(OF_THE_LAUNCHER.split(), "x")
    assert clean_environment({**KEPT, **launch}) == KEPT
