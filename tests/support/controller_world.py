"""The controller over fakes, in virtual time: a test tells a story beside it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import virtual_time
from kvquota_operator.controller import ControllerSettings, PoolController
from operator_fakes import FakeChannel, FakeCluster, FakePod, Journal, Script, identity, pod

SETTINGS = ControllerSettings(sync_seconds=2.0, debounce_seconds=0.05, patience_seconds=0.5)

FIRST_PASS = [
    "observe",
    "secret",
    "config pod-0 generation 1",
    "sync pod-0",
    "sync pod-0 +config +identity",
    "pool status",
    "quota status search",
]
"""What the first pass over `a_full_world` does."""


@dataclass
class World:
    """A controller over fakes, running in virtual time. `bugs`: it may meet some, which fail every other test."""

    journal: Journal = field(default_factory=Journal)
    script: Script = field(default_factory=Script)
    counted: list[str] = field(default_factory=list)
    bugs: bool = False
    running: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self.cluster = FakeCluster(self.journal)
        self.channel = FakeChannel(self.journal)
        self.controller = PoolController(
            self.cluster,
            self.channel,
            virtual_time.LoopClock(),
            SETTINGS,
            telemetry=self,
            decide=self.script,
            jitter=lambda: 0.5,
        )

    def with_pods(self, *names: str) -> "World":
        for number, name in enumerate(names):
            self.cluster.pods += (pod(name, ip=f"10.0.0.{number + 1}"),)
            self.channel.pods[name] = FakePod()
            self.script.caps[name] = 100
        return self

    def passed(self, seconds: float) -> None:
        self.counted.append("pass")

    def done(self, kind: str) -> None:
        self.counted.append(f"done {kind}")

    def failed(self, kind: str, reason: str) -> None:
        self.counted.append(f"failed {kind} {reason}")


def a_full_world() -> World:
    """One pod, one quota, and something to write of everything."""
    world = World().with_pods("pod-0")
    world.script.identity = identity(a="inference/search")
    world.script.pool_status = {"rung": "Normal"}
    world.script.quota_statuses = {"search": {"state": "Ready"}}
    world.cluster.quota_statuses = {"search": {}}
    return world


def play(world: World, story: Callable[[World], Awaitable[None]]) -> None:
    """Run `story` beside the controller; a bug of either fails the test."""

    async def scene() -> None:
        running = world.running = asyncio.create_task(world.controller.run())
        telling = asyncio.ensure_future(story(world))
        await asyncio.wait([running, telling], return_when=asyncio.FIRST_COMPLETED)
        for task in (running, telling):
            task.cancel()
        ended = await asyncio.gather(running, telling, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error
        assert world.bugs or not [each for each in world.counted if each.endswith(" Bug")]

    virtual_time.run(scene())


async def settled(world: World, seconds: float = 0.3) -> list[str]:
    """What happened until now and in the next moment; shorter than the period between two passes."""
    await asyncio.sleep(seconds)
    return world.journal.taken()
