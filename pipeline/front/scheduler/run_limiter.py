"""Rate limiter: lets a worker instance run a batch only while the resources that it needs are free.

Instances of all models share the resources. Among instances that wait, the one with the least virtual time is
next: each run adds the instance's priority to its virtual time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from pipeline.api.run_resources import Resource, ResourceLimits, RunNeeds, get_largest_needs


class LimitedInstance(Protocol):
    """Interface of a worker instance for the rate limiter."""

    number: int  # among the instances of its model


Limited = TypeVar("Limited", bound=LimitedInstance)


class Claim(NamedTuple):
    """The claim of a waiting instance to rate-limiter resources. The smallest claim is served first."""

    virtual_time: int
    model: int
    number: int
    needs: RunNeeds

    def conflicts_with(self, other: Claim) -> bool:
        """Return whether both instances need the same resource."""
        resources = {resource for resource, _ in self.needs.counts}
        return any(resource in resources for resource, _ in other.needs.counts)


class RunLimiter:
    """Triton's rate limiter: the resources of a server, the instances that hold them, and waiting models."""

    def __init__(self, limits: ResourceLimits) -> None:
        self._limits = limits
        self._largest: dict[Resource, int] = {}
        self.running: dict[LimitedInstance, RunNeeds] = {}
        self.models: list[LimitedRuns] = []
        self.now = 0  # virtual time of the latest run
        self.numbers = itertools.count()

    def update_models(self, needs: Iterable[RunNeeds]) -> None:
        """Record the needs of all instances of the served models, after models were loaded or unloaded.

        Without configured limits, the server has as much of each resource as the largest need of an instance.
        """
        self._largest = get_largest_needs(needs)

    def get_count(self, resource: Resource) -> int:
        """Return how many units of a resource the server has."""
        return self._limits.get_count(resource) if self._limits.limits else self._largest.get(resource, 0)

    def count_allocated(self) -> Counter[Resource]:
        """Return how many units of each resource the running instances hold."""
        allocated: Counter[Resource] = Counter()
        for needs in self.running.values():
            allocated.update(dict(needs.counts))
        return allocated

    def wake_waiting(self) -> None:
        """Let the models with waiting instances try to dispatch again, in the order of their claims."""
        waiting = [(min(model.waiting.values()), model) for model in self.models if model.waiting]
        for _, model in sorted(waiting, key=lambda pair: pair[0]):
            model.dispatch_soon()


class LimitedRuns:
    """The claims of one model's instances to the resources of a `RunLimiter`.

    An attempt is one try of the model's batcher to dispatch its queued requests.
    """

    def __init__(
        self, limiter: RunLimiter, needs: Sequence[RunNeeds], dispatch_soon: Callable[[], None]
    ) -> None:
        """Create the claims of a model. needs: resource needs of each instance, by number of the instance.

        dispatch_soon: called when a waiting instance may try again.
        """
        self.dispatch_soon = dispatch_soon
        self.waiting: dict[int, Claim] = {}  # by number of the instance
        self._waited: set[int] = set()  # instances that waited before the current attempt
        self._limiter = limiter
        self._needs = needs
        self._times: Counter[int] = Counter()  # virtual times by number of the instance
        self._model = next(limiter.numbers)

    def begin_attempt(self) -> None:
        """Drop all claims of waiting instances; `select` adds those of instances that still wait."""
        if self not in self._limiter.models:
            self._limiter.models.append(self)
        self._waited = set(self.waiting)
        self.waiting.clear()

    def end_attempt(self, *, has_tasks: bool) -> None:
        """Wake waiting instances of all models if an instance of this model has stopped waiting.

        has_tasks: whether requests of the model are still queued. If not, no instance waits.
        """
        if not has_tasks:
            self.waiting.clear()
        if self._waited - self.waiting.keys():
            self._limiter.wake_waiting()

    def select(self, instances: Iterable[Limited]) -> list[Limited]:
        """Return the instances that may begin a run now, all at the same time. The others wait for resources.

        An instance also waits if an instance of another model waits for the same resource and has a smaller
        claim.
        """
        allocated = self._limiter.count_allocated()
        selected = []
        for claim, instance in sorted(
            ((self._get_claim(instance), instance) for instance in instances), key=lambda pair: pair[0][0]
        ):
            if self._fits(claim.needs, allocated) and not self._is_behind(claim):
                allocated.update(dict(claim.needs.counts))
                selected.append(instance)
            else:
                self.waiting[instance.number] = claim
        return selected

    def begin(self, instance: LimitedInstance) -> None:
        """Record that a selected instance has begun a run, and holds its resources."""
        claim = self._get_claim(instance)
        self._limiter.now = claim.virtual_time
        self._times[instance.number] = claim.virtual_time + claim.needs.priority
        self._limiter.running[instance] = claim.needs
        self.waiting.pop(instance.number, None)

    def end(self, instance: LimitedInstance) -> None:
        """Record that an instance has ended its run or has died, which frees its resources."""
        if self._limiter.running.pop(instance, None) is not None:
            self._limiter.wake_waiting()

    def close(self) -> None:
        """Drop the claims of the model, because it gets no new requests."""
        self.waiting.clear()
        if self in self._limiter.models:
            self._limiter.models.remove(self)
            self._limiter.wake_waiting()

    def _get_claim(self, instance: LimitedInstance) -> Claim:
        """Return the claim of an instance.

        An instance that was idle does not get extra runs for the idle time.
        """
        number = instance.number
        needs = self._needs[number] if number < len(self._needs) else RunNeeds()
        return Claim(max(self._times[number], self._limiter.now), self._model, number, needs)

    def _fits(self, needs: RunNeeds, allocated: Counter[Resource]) -> bool:
        # Where nobody holds a resource, a run begins in any case: no request must wait for ever.
        return all(
            not allocated[resource] or allocated[resource] + count <= self._limiter.get_count(resource)
            for resource, count in needs.counts
        )

    def _is_behind(self, claim: Claim) -> bool:
        claims = (model.waiting.values() for model in self._limiter.models if model is not self)
        return any(other < claim and other.conflicts_with(claim) for each in claims for other in each)
