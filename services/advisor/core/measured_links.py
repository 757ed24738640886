"""Links between a configuration and the records: without one its time is not known, whatever a model computes.

A machine that was measured is its own link. Another one is known by its sizes: of a provider, and with accelerators,
that were measured, and with a quantity that is known of it and of those.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.accelerators import canonical_name
from schemas.jobs import Configuration


def missing_link(configuration: Configuration, machines: Iterable[Configuration]) -> str:
    """Return why nothing links a configuration's machine to those that were measured; empty if something does.

    Args:
        configuration: As completed by the price catalogue.
        machines: A configuration of each measured machine; without any there is nothing to link to, and no reason.
    """
    known = list(machines)
    name = configuration.instance_type
    if not known or any(one.instance_type == name and one.provider == configuration.provider for one in known):
        return ""
    # Records that name no provider may be of any.
    if not {configuration.provider, ""} & {one.provider for one in known}:
        return f"no machine of {configuration.provider or 'this provider'} was measured: run one job there first"
    with_it = [one for one in known if canonical_name(one.accelerator) == configuration.accelerator]
    if not with_it:
        of = f"with {configuration.accelerator}" if configuration.accelerator else "without accelerators"
        return f"no machine {of} was measured: run one job on one first"
    if configuration.accelerator or any(configuration.vcpu and one.vcpu for one in with_it):
        return ""
    return f"{name} was not measured, and the sizes of the machines that were are not known: run one job on it first"
