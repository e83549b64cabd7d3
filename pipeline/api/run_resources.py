"""Resources that worker instances hold while they run a batch, and how much of them the server has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.errors import ConfigError

EXECUTION_COUNT = "execution_count"  # of `--rate-limit`: instances run by priority, while resources are free


class Resource(NamedTuple):
    """A rate limiter resource of one device, or, without a device, of the whole server."""

    name: str
    device: int | None = None


class RunNeeds(NamedTuple):
    """The resources that one worker instance holds while it runs a batch, and its priority."""

    counts: tuple[tuple[Resource, int], ...] = ()
    priority: int = 1  # an instance of priority 2 gets half as many runs as an instance of priority 1


class ResourceLimits(NamedTuple):
    """The available resources, from `--rate-limit-resource`. A count without a device applies to each device.

    Without any count, the server has as much of each resource as the most demanding instance needs.
    """

    limits: tuple[tuple[Resource, int], ...] = ()

    def get_count(self, resource: Resource) -> int:
        """Return how much of a resource the server has; 0 for a resource that no limit names."""
        devices = (None, resource.device)
        return max(
            (
                count
                for limit, count in self.limits
                if limit.name == resource.name and (resource.device is None or limit.device in devices)
            ),
            default=0,
        )


def parse_resource_limits(mode: str, arguments: Sequence[str]) -> ResourceLimits | None:
    """Parse `--rate-limit` and the values of `--rate-limit-resource`; None for a server without limits.

    Raises ConfigError for a resource that is given twice.
    """
    if mode != EXECUTION_COUNT:
        return None
    limits: dict[Resource, int] = {}
    for text in arguments:
        name, count, *device = text.split(":")
        resource = Resource(name, int(device[0]) if device else None)
        if resource in limits:
            raise ConfigError(f"--rate-limit-resource={text}: the count of {name} is given twice, remove one")
        limits[resource] = int(count)
    return ResourceLimits(tuple(limits.items()))


def parse_run_needs(config: Mapping[str, Any]) -> tuple[RunNeeds, ...]:
    """Return the resources that each instance of a model needs, from `rate_limiter` of config.pbtxt.

    The result is keyed by instance number. It is empty for a model whose instances need no resources.
    """
    needs: list[RunNeeds] = []
    for group in list_active_groups(config):
        limiter = group.get("rate_limiter", {})
        for number in range(group["count"]):
            device = int(group["gpus"][number % len(group["gpus"])]) if group["gpus"] else 0
            counts = (
                (Resource(each["name"], None if each["global"] else device), int(each["count"]))
                for each in limiter.get("resources", ())
            )
            needs.append(RunNeeds(tuple(counts), max(1, int(limiter.get("priority", 0)))))
    return tuple(needs) if any(need.counts for need in needs) else ()


def list_active_groups(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the instance groups of a config.pbtxt that run requests: all but the passive groups."""
    return [group for group in config.get("instance_group", ()) if not group.get("passive")]


def find_resource_error(needs: Iterable[RunNeeds], limits: ResourceLimits) -> str:
    """Return Triton's error message for a resource that the server lacks, or that is declared in two ways.

    Two ways: as global and as device-specific. needs: resources of a model's instances. Empty if there is no
    error.
    """
    largest = get_largest_needs(needs)
    if error := _find_kind_error(largest):
        return error
    for resource, count in largest.items():
        available = limits.get_count(resource)
        if limits.limits and available < count:
            return (
                f'Resource count for "{resource.name}" is limited to {available} which will prevent '
                "scheduling of one or more model instances, the minimum required count is "
                f"{count}. Raise --rate-limit-resource={resource.name}:{count}"
            )
    return ""


def find_kind_error(needs: Iterable[RunNeeds]) -> str:
    """Return Triton's error message for a resource that is declared both global and device-specific.

    needs: resources of the instances of all models. Empty if there is no such resource.
    """
    return _find_kind_error(get_largest_needs(needs))


def _find_kind_error(resources: Collection[Resource]) -> str:
    for resource in resources:
        if resource.device is not None and Resource(resource.name) in resources:
            return (
                f'Resource "{resource.name}" is present as both global and device-specific resource in the '
                "model configuration."
            )
    return ""


def get_largest_needs(needs: Iterable[RunNeeds]) -> dict[Resource, int]:
    """Return the maximum count of each resource that any one of these instances needs."""
    largest: dict[Resource, int] = {}
    for resource, count in (each for need in needs for each in need.counts):
        largest[resource] = max(count, largest.get(resource, 0))
    return largest
