"""Policies: compositions of one pure function per part.

The engine calls a policy with the state after every event that can change its decisions; it
returns decisions, keeps no memory and changes nothing. The mode of a job applies under every
policy. docs/rms/own-part.md has the arguments of parts, and users' own parts.
"""

from rms.core.policies.admission import View
from rms.core.policies.compose import (
    DEFAULT,
    POLICIES,
    adjusted,
    modules_of,
    named,
    placing,
    read_policy,
)
from rms.core.policies.policy import MissingPartError, Policy, PolicyError

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
