"""Policies: compositions of one pure function per part.

A policy is called with the state after every event that can change its mind and returns
decisions; it keeps no memory and changes nothing. Each job is treated by its own mode, under
every policy. The README has the arguments of parts, and how to bring one's own.
"""

from rms.core.policies.compose import (
    DEFAULT,
    POLICIES,
    adjusted,
    modules_of,
    named,
    placing,
    read_policy,
)
from rms.core.policies.policy import MissingPartError, Policy, PolicyError, View

__all__ = [
    "DEFAULT",
    "POLICIES",
    "MissingPartError",
    "Policy",
    "PolicyError",
    "View",
    "adjusted",
    "modules_of",
    "named",
    "placing",
    "read_policy",
]
