"""Pods, their nodes, an API server and an operator that forgets, as far as the distribution of quota sees them.

A pod takes configs by the sidecar's own rules. Everything that is on its way (writes to the API server, configs to a
pod, a mounted copy that the node refreshes) arrives late, in any order, or never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import reconcile_builders as make
from kvquota_api.amounts import Blocks
from kvquota_api.pod_config import PodConfig, TenantShare, encode
from kvquota_api.tenant_quota import TenantQuota
from kvquota_api.usage import Counts, Source, TenantUsage, UsageReport
from kvquota_operator.planning.blocks import blocks_of
from kvquota_operator.planning.granting import longest_request
from kvquota_operator.reading.pods import GRACE_SECONDS, PodRecord
from kvquota_operator.reading.vanished import EXTENSION_SECONDS, Vanished
from kvquota_operator.reconcile.demands import OWN_SEQUENCES
from kvquota_operator.reconcile.observed import InvalidSeen, Observed, PodSeen, ReportSeen, SecretSeen
from kvquota_operator.reconcile.reconcile import reconcile
from kvquota_operator.reconcile.usage import OWN_HARD
from kvquota_sidecar.channel.adoption import Documents, offer_config

ENDLESS = 2**40  # sequences where there is no limit
EMPTY = make.observed(quotas=(), keys={}, pods=(), reports={}, secret=SecretSeen(make.TOKEN, make.PEPPER))
UNITS = ("blocks", "sequences")


@dataclass
class Pod:
    """`disk`: the copy that its volume shows. `work`: by tenant, the blocks of each request that runs.

    `recent`: by tenant, what was admitted and refused in the last ten minutes. `rush`: tenants whose requests take all
    that they may. `boasts`: more blocks and sequences, and
    more refusals, than there are, that it reports of every tenant.
    `runs`: False while there is no node for it: it has only its object, and whatever is stored for it.
    `vanished`: it has no object any more, or none that the selector matches, and works on. `left`: it has one.
    """

    seen: PodSeen
    size: int
    documents: Documents = field(default_factory=Documents)
    disk: PodConfig | None = None
    work: dict[str, list[int]] = field(default_factory=dict)
    recent: dict[str, Counter[str]] = field(default_factory=dict)
    rush: set[str] = field(default_factory=set)
    boasts: tuple[int, int] = (0, 0)
    underway: list[PodConfig] = field(default_factory=list)
    reachable: bool = True
    runs: bool = True
    vanished: bool = False
    left: bool = False

    @property
    def uid(self) -> str:
        return self.seen.uid

    def take(self, config: PodConfig, source: Source) -> None:
        self.documents = offer_config(self.documents, encode(config), source, self.uid)

    def refresh(self, copy: PodConfig | None) -> None:
        """The node brings the volume up to date."""
        if self.runs and self.seen.config_map is not None and copy is not None and copy != self.disk:
            self.disk = copy
            self.take(copy, "File")

    def start(self, copy: PodConfig | None) -> None:
        """There is a node for it; `copy`: what its volume shows then."""
        self.runs = self.reachable = True
        self.refresh(copy)

    def crash(self) -> None:
        """What was sent to the dead process is lost; the new one has what its volume shows."""
        self.documents, self.work, self.recent, self.underway = Documents(), {}, {}, []
        if self.disk is not None:
            self.take(self.disk, "File")

    def share(self, tenant: str) -> TenantShare | None:
        config = self.documents.config
        return None if config is None else next((each for each in config.tenants if each.id == tenant), None)

    def admit(self, tenant: str, blocks: int) -> bool:
        """Whether a request of so many blocks runs now."""
        share, running = self.share(tenant), self.work.get(tenant, [])
        most, counts = allowed(share), self.recent.setdefault(tenant, Counter())
        if sum(running) + blocks > most[0]:
            counts[OWN_HARD] += 1
            return False
        if len(running) + 1 > most[1]:
            counts[OWN_SEQUENCES] += 1
            return False
        counts["admitted"] += 1
        self.work.setdefault(tenant, []).append(blocks)
        return True

    def refused(self, tenant: str) -> tuple[int, int]:
        """How many requests it says that blocks, and sequences, were too few for."""
        counts = self.recent.get(tenant, Counter())
        return counts[OWN_HARD] + self.boasts[1], counts[OWN_SEQUENCES] + self.boasts[1]

    def rushed(self, tenant: str) -> tuple[int, int]:
        """Blocks and sequences that a rush takes."""
        blocks, sequences = allowed(self.share(tenant)) if tenant in self.rush else (0, 0)
        return blocks, min(sequences, 9)

    def report(self) -> UsageReport:
        shares = () if self.documents.config is None else self.documents.config.tenants
        tenants = sorted({share.id for share in shares} | self.work.keys() | self.recent.keys() | self.rush)
        usages = [self._usage(tenant) for tenant in tenants]
        return make.report(*usages, blocks=self.size, in_force=self.documents.in_force())

    def _usage(self, tenant: str) -> TenantUsage:
        refused = self.refused(tenant)
        holds = _most(_running(self, tenant), self.rushed(tenant), (self.boasts[0], self.boasts[0]))
        return make.tenant_usage(
            tenant.partition("/")[2],
            reserved=holds[0],
            in_flight=holds[1],
            recent=Counts(
                admitted=self.recent.get(tenant, Counter())["admitted"],
                rejected=dict(zip((OWN_HARD, OWN_SEQUENCES), refused, strict=True)),
            ),
        )


def allowed(share: TenantShare | None) -> tuple[int, int]:
    """Blocks and sequences that a share lets run."""
    if share is None or not share.hard_blocks:
        return 0, 0
    return share.hard_blocks, share.max_concurrent_requests or ENDLESS


def allowed_by(config: PodConfig | None, tenant: str) -> tuple[int, int]:
    shares = () if config is None else config.tenants
    return allowed(next((each for each in shares if each.id == tenant), None))


@dataclass
class Write:
    """One request to the API server that has not been carried out; `base` is what it was to replace."""

    config: PodConfig
    base: PodConfig | None


class World:
    """`pods` by uid; `quotas` by name. What the operator knows besides objects: `reports`, `attempts`, `wanted`.

    `known`, `stored`: the reports and the copies as they were when it decided, and `kept` the quotas that nobody could
    read then. `written`: by uid, how often a copy of
    a pod was stored.
    """

    def __init__(self) -> None:
        self.quotas: dict[str, TenantQuota] = {}
        self.unread: dict[str, InvalidSeen] = {}
        self.pods: dict[str, Pod] = {}
        self.copies: dict[str, PodConfig] = {}
        self.writes: list[Write] = []
        self.written: Counter[str] = Counter()
        self.vanished = Vanished()
        self.now = 0.0
        self.forget()
        self.born = 0

    def forget(self) -> None:
        """The operator ends, and another one begins."""
        self.reports: dict[str, ReportSeen] = {}
        self.attempts: dict[str, PodConfig] = {}
        self.wanted: dict[str, PodConfig] = {}
        self.known: dict[str, ReportSeen] = {}
        self.stored: dict[str, PodConfig] = {}
        self.kept: frozenset[str] = frozenset()
        self.writes = []

    def join(self, *, size: int, mounts: bool, name: str = "p", runs: bool = True) -> Pod:
        self.born += 1
        seen = make.pod(f"{name}{self.born}", ready=False)
        seen = replace(seen, config_map=f"kvq-{self.born:032x}" if mounts else None)
        pod = Pod(seen, size, reachable=runs, runs=runs)
        self.pods[pod.uid] = pod
        return pod

    def leave(self, pod: Pod) -> None:
        pod.seen = replace(pod.seen, deleting=True)

    def gone(self, pod: Pod) -> None:
        """The object of a pod that has ended is removed, and with it what it owns."""
        for known in (self.pods, self.copies, self.reports, self.attempts, self.wanted):
            known.pop(pod.uid, None)
        self.writes = [each for each in self.writes if each.config.pod.uid != pod.uid]

    def vanish(self, pod: Pod, *, may_run: bool = True) -> None:
        """Its object is deleted by force, and what that owns; if it `may_run`, it works on for its grace period."""
        record = PodRecord(pod.seen, {}, may_run=may_run)
        self.vanished.keep(record, self.copies.pop(pod.uid, None), self.now)
        self.writes = [each for each in self.writes if each.config.pod.uid != pod.uid]
        pod.vanished, pod.reachable = True, False

    def deselect(self, pod: Pod) -> None:
        """It loses its labels, and nothing else: its copy stays, and what is on its way to it too."""
        record = PodRecord(pod.seen, {}, may_run=True)
        self.vanished.keep(record, self.copies.get(pod.uid), self.now, stored=pod.uid in self.copies)
        pod.vanished = pod.left = True
        pod.reachable = False

    def end_those_that_left(self) -> None:
        """They are deleted, and their copies collected."""
        for pod in [each for each in self.pods.values() if each.left]:
            self.copies.pop(pod.uid, None)
            self.vanished.collected(pod.uid, self.now)
            self.gone(pod)

    def grace_periods_end(self) -> None:
        """The nodes have ended all whose objects are gone."""
        self.now += GRACE_SECONDS + EXTENSION_SECONDS
        for pod in [each for each in self.pods.values() if each.vanished and not each.left]:
            self.gone(pod)

    def observed(self) -> Observed:
        there = [pod.seen for pod in self.pods.values() if not pod.vanished]
        self.vanished.sweep(self.now, [seen.uid for seen in there])
        kept = self.vanished.records.values()
        return replace(
            EMPTY,
            quotas=make.seen(*self.quotas.values()),
            invalid=tuple(self.unread.values()),
            pods=(*there, *(record.seen for record in kept)),
            configs={**{copy.pod.uid: copy for copy in self.vanished.copies()}, **self.copies},
            attempts=dict(self.attempts),
            reports=dict(self.reports),
        )

    def decide(self) -> None:
        self.known, self.stored, self.kept = dict(self.reports), dict(self.copies), frozenset(self.unread)
        plan = reconcile(self.observed(), make.NOW, make.WALL)
        self.wanted = {config.pod.uid: config for config in plan.configs}

    def write(self, pod: Pod) -> bool:
        """Begin to store what is wanted of a pod, unless that is stored or under way."""
        wanted, stored = self.wanted.get(pod.uid), self.copies.get(pod.uid)
        busy = any(each.config.pod.uid == pod.uid for each in self.writes)
        if wanted is None or busy or (wanted == stored and pod.uid not in self.attempts):
            return False
        self.attempts[pod.uid] = wanted
        self.writes.append(Write(wanted, stored))
        return True

    def land(self, write: Write, *, stored: bool = True, told: bool = True) -> None:
        """A write ends: `stored` or not, and the operator is `told` or not."""
        self.writes.remove(write)
        uid = write.config.pod.uid
        if stored and self.copies.get(uid) == write.base:
            self.copies[uid] = write.config
            self.vanished.follow(write.config)
            self.written[uid] += 1
        elif stored:
            told = True  # refused, since another write came before
        if told and self.attempts.get(uid) == write.config:
            del self.attempts[uid]

    def ask(self, pod: Pod) -> None:
        """One question to a pod; a config that it lacks is on its way to it, once that is stored."""
        if pod.vanished:
            return
        if not pod.reachable:
            before = self.reports.get(pod.uid, ReportSeen())
            self.reports[pod.uid] = replace(before, error="timeout")
            return
        self.reports[pod.uid] = ReportSeen(pod.report(), make.NOW)
        wanted = self.wanted.get(pod.uid)
        if wanted is None or pod.documents.in_force().config_digest == wanted.digest:
            return
        if wanted == self.copies.get(pod.uid) and wanted not in pod.underway:
            pod.underway.append(wanted)

    def whole_pass(self, *, arrives: bool = True) -> None:
        """All that one undisturbed pass does; or none of its configs `arrives` yet."""
        self.decide()
        for pod in self.pods.values():
            self.write(pod)
        for write in tuple(self.writes):
            self.land(write)
        for pod in self.pods.values():
            self.ask(pod)
            while pod.underway and pod.reachable and arrives:
                pod.take(pod.underway.pop(), "Channel")
            self.ask(pod)

    def limit(self, name: str) -> tuple[int, int] | None:
        """Blocks and sequences that all pods together may hold; None where each pod has its own limits."""
        quota = self.quotas.get(name)
        if quota is None:
            return None if name in self.unread and self._is_kept_by_each(name) else (0, 0)
        if quota.spec.scope != "Pool":
            return None
        together = Blocks(len(self.pods) * (make.CAP - 1))  # before an engine has come up it counts as planned
        hard = None if quota.spec.kv is None else quota.spec.kv.hard
        kv = next(iter(self.copies.values())).kv if self.copies else None
        blocks = together if hard is None or kv is None else blocks_of(hard, together, kv)
        return blocks, quota.spec.max_concurrent_requests or ENDLESS * len(self.pods)

    def _is_kept_by_each(self, name: str) -> bool:
        """Whether what is kept of a quota that nobody can read is no part of a whole."""
        kept = [share for copy in self.copies.values() for share in copy.tenants if share.quota == name]
        return any(share.whole_hard_blocks is None for share in kept)

    def in_force(self, tenant: str) -> tuple[int, int]:
        """Blocks and sequences that all pods together let run, or run already."""
        return _sums(_most(allowed(pod.share(tenant)), _running(pod, tenant)) for pod in self.pods.values())

    def possible(self, tenant: str) -> tuple[int, int]:
        """The same, of all that any pod may come to by what is decided already, whatever of it arrives."""
        return _sums(self._possible(pod, tenant) for pod in self.pods.values())

    def held_without_a_node(self, tenant: str) -> tuple[int, int]:
        """The same, of the pods that do not run; (0, 0) where there are none."""
        return _sums(
            _most(self._possible(pod, tenant), _held_earlier(self.copies.get(pod.uid), tenant))
            for pod in self.pods.values()
            if not pod.runs
        )

    def longest_request(self, name: str) -> int:
        """Blocks of the tenant's longest request."""
        kv = next(iter(self.copies.values())).kv
        return longest_request(self.quotas[name].spec.max_context_tokens, kv)

    def _possible(self, pod: Pod, tenant: str) -> tuple[int, int]:
        now = pod.documents.in_force().generation
        coming: list[PodConfig | None] = [config for config in pod.underway if config.generation > now]
        coming += [each.config for each in self.writes if each.config.pod.uid == pod.uid]
        coming += [each.get(pod.uid) for each in (self.copies, self.attempts, self.wanted)]
        configs = [pod.documents.config, pod.disk, *coming]
        return _most(_running(pod, tenant), *(allowed_by(config, tenant) for config in configs))


def _running(pod: Pod, tenant: str) -> tuple[int, int]:
    running = pod.work.get(tenant, [])
    return sum(running), len(running)


def _held_earlier(config: PodConfig | None, tenant: str) -> tuple[int, int]:
    """What a copy remembers that the pod may have had before."""
    earlier = () if config is None else config.earlier
    return next(
        ((each.hard_blocks, each.max_concurrent_requests or ENDLESS) for each in earlier if each.id == tenant), (0, 0)
    )


def _most(*amounts: tuple[int, int]) -> tuple[int, int]:
    blocks, sequences = zip(*amounts, strict=True)
    return max(blocks), max(sequences)


def _sums(amounts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    pairs = list(amounts)
    return sum(blocks for blocks, _ in pairs), sum(sequences for _, sequences in pairs)
