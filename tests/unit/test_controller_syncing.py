"""One conversation with a sidecar, and what stays of it."""

import asyncio

import msgspec
import pytest

import reconcile_builders as make
import virtual_time
from kvquota_api.pod_config import decode_config, decode_identity
from kvquota_api.usage import InForce, SyncRequest, UsageReport
from kvquota_operator.ports import ChannelError, PodTimeoutError, TokenNotYetError, TokenRefusedError
from kvquota_operator.reading.reports import OTHERS_KEPT
from kvquota_operator.reconcile.observed import ReportSeen
from kvquota_operator.syncing import Conversation, Documents, PodMemory
from operator_fakes import FakeChannel, FakePod, Journal, config, identity, pod, report

CONFIG, IDENTITY = config(), identity(a="inference/search")
WANTED = Documents(CONFIG, IDENTITY)


@pytest.mark.parametrize(
    ("documents", "in_force", "sent"),
    [
        pytest.param(WANTED, InForce(), ["config", "identity"], id="a new sidecar gets both"),
        pytest.param(
            WANTED,
            InForce(config_digest=CONFIG.digest, identity_digest="old"),
            ["identity"],
            id="a sidecar with the config gets only the identity",
        ),
        pytest.param(
            WANTED,
            InForce(config_digest="old", identity_digest=IDENTITY.digest),
            ["config"],
            id="a sidecar with the identity gets only the config",
        ),
        pytest.param(
            WANTED,
            InForce(config_digest=CONFIG.digest, identity_digest=IDENTITY.digest),
            [],
            id="a sidecar with both gets nothing",
        ),
        pytest.param(Documents(None, None), InForce(config_digest="old"), [], id="nothing to say sends nothing"),
    ],
)
def test_what_is_sent(documents: Documents, in_force: InForce, sent: list[str]) -> None:
    lacking = documents.lacking(in_force)
    parts = {} if lacking is None else {"config": lacking.config, "identity": lacking.identity}
    assert [name for name, part in parts.items() if part] == sent


def test_a_request_names_the_digests_and_carries_no_document() -> None:
    assert WANTED.request() == SyncRequest(config_digest=CONFIG.digest, identity_digest=IDENTITY.digest)
    assert Documents(None, None).request() == SyncRequest(config_digest="", identity_digest="")


KNOWN = report(epoch="e1", sequence=5, started_at=100.0)


@pytest.mark.parametrize(
    ("late", "taken"),
    [
        pytest.param(report(epoch="e1", sequence=6, started_at=100.0), True, id="the next report is taken"),
        pytest.param(report(epoch="e1", sequence=5, started_at=100.0), False, id="the same report is not taken twice"),
        pytest.param(report(epoch="e1", sequence=4, started_at=100.0), False, id="an older report is ignored"),
        pytest.param(report(epoch="e2", sequence=0, started_at=101.0), True, id="a new process counts from the start"),
        pytest.param(report(epoch="e0", sequence=99, started_at=99.0), False, id="a process that ended is ignored"),
    ],
)
def test_which_reports_are_taken(late: UsageReport, taken: bool) -> None:
    memory = PodMemory()
    memory.accept(KNOWN, 1.0)
    memory.accept(late, 2.0)
    assert memory.seen == (ReportSeen(late, 2.0) if taken else ReportSeen(KNOWN, 1.0))


def test_a_failure_keeps_the_last_report_and_a_report_ends_the_error() -> None:
    memory = PodMemory()
    memory.fail(PodTimeoutError("late"))
    assert memory.seen == ReportSeen(None, None, "late")
    memory.accept(KNOWN, 1.0)
    assert memory.seen == ReportSeen(KNOWN, 1.0)
    memory.fail(PodTimeoutError("late again"))
    assert memory.seen == ReportSeen(KNOWN, 1.0, "late again")


HAS_BOTH = InForce(config_digest=CONFIG.digest, identity_digest=IDENTITY.digest)


@pytest.mark.parametrize(
    ("in_force", "asked_ago", "due"),
    [
        pytest.param(HAS_BOTH, 1.9, False, id="a pod with everything waits for its period"),
        pytest.param(HAS_BOTH, 2.0, True, id="a pod with everything is asked after its period"),
        pytest.param(InForce(), 0.1, True, id="a pod that lacks a document is asked at once"),
    ],
)
def test_when_a_pod_is_due(in_force: InForce, asked_ago: float, due: bool) -> None:
    memory = PodMemory()
    memory.asked(10.0)
    memory.accept(report(in_force=in_force), 10.0)
    assert memory.due(WANTED, 10.0 + asked_ago, period=2.0) is due


def test_a_pod_that_was_never_asked_or_did_not_answer_is_due_at_once() -> None:
    memory = PodMemory()
    assert memory.due(WANTED, 0.0, period=2.0)
    memory.asked(0.0)
    assert not memory.due(WANTED, 1.0, period=2.0)
    memory.fail(PodTimeoutError("late"))
    assert memory.due(WANTED, 1.0, period=2.0)


def hold(there: FakePod) -> tuple[list[str], PodMemory, Exception | None]:
    journal, memory = Journal(), PodMemory()
    talk = Conversation(pod(), "token", WANTED, memory)

    async def scene() -> Exception | None:
        try:
            await talk.hold(FakeChannel(journal, {"pod-0": there}), virtual_time.LoopClock())
        except PodTimeoutError as error:
            return error
        return None

    error = virtual_time.run(scene())
    return journal.taken(), memory, error


def test_a_conversation_says_digests_first_then_what_is_lacking() -> None:
    lines, memory, _ = hold(FakePod())
    assert lines == ["sync pod-0", "sync pod-0 +config +identity"]
    assert memory.seen is not None
    assert memory.seen.report is not None
    assert memory.seen.report.in_force == InForce(
        generation=1, config_digest=CONFIG.digest, identity_digest=IDENTITY.digest, source="Channel"
    )


def test_a_conversation_with_a_pod_that_has_everything_is_one_question() -> None:
    lines, _, _ = hold(FakePod(in_force=HAS_BOTH))
    assert lines == ["sync pod-0"]


class TalkativePod(FakePod):
    """It tells of more tenants than are anybody's business."""

    def answer(self, request: SyncRequest) -> UsageReport:
        others = tuple(make.tenant_usage(f"other-{number}") for number in range(OTHERS_KEPT + 1))
        return msgspec.structs.replace(super().answer(request), tenants=others)


def test_a_conversation_keeps_no_more_of_a_report_than_is_of_interest() -> None:
    _, memory, _ = hold(TalkativePod(in_force=HAS_BOTH))
    assert memory.seen is not None
    assert memory.seen.report is not None
    assert len(memory.seen.report.tenants) == OTHERS_KEPT


def test_a_sidecar_that_refuses_is_not_pressed_within_one_conversation() -> None:
    lines, memory, _ = hold(FakePod(refuses=True))
    assert lines == ["sync pod-0", "sync pod-0 +config +identity"]
    assert memory.seen is not None
    assert memory.seen.report is not None
    assert memory.seen.report.in_force == InForce()


def test_a_conversation_that_breaks_is_remembered_and_told() -> None:
    lines, memory, error = hold(FakePod(failures=[PodTimeoutError("late")]))
    assert lines == ["sync pod-0"]
    assert memory.seen == ReportSeen(None, None, "late")
    assert str(error) == "late"


def test_documents_travel_as_they_were_sealed() -> None:
    lacking = WANTED.lacking(InForce())
    assert lacking is not None
    sent = msgspec.json.decode(msgspec.json.encode(lacking))
    assert decode_config(msgspec.json.encode(sent["config"])) == CONFIG
    assert decode_identity(msgspec.json.encode(sent["identity"])) == IDENTITY


@pytest.mark.parametrize(
    ("age", "raised"),
    [
        pytest.param(0.0, TokenNotYetError, id="a new pod"),
        pytest.param(59.0, TokenNotYetError, id="a pod of 59 seconds"),
        pytest.param(60.0, TokenRefusedError, id="a pod of a minute"),
    ],
)
def test_a_pod_that_does_not_know_the_token_has_a_minute(age: float, raised: type[ChannelError]) -> None:
    refused = TokenRefusedError("the sidecar does not accept the pool's token")
    there, memory = FakePod(failures=[refused, refused]), PodMemory()
    talk = Conversation(pod(), "token", WANTED, memory)

    async def scene() -> ChannelError | None:
        channel, clock = FakeChannel(Journal(), {"pod-0": there}), virtual_time.LoopClock()
        with pytest.raises(TokenRefusedError):
            await talk.hold(channel, clock)
        await asyncio.sleep(age)
        try:
            await talk.hold(channel, clock)
        except ChannelError as error:
            return error
        return None

    found = virtual_time.run(scene())
    assert (type(found), str(found).startswith("not yet: ")) == (raised, raised is TokenNotYetError)
    assert memory.seen == ReportSeen(None, None, str(refused))


def test_since_when_a_pod_is_behind() -> None:
    memory, older, newer = PodMemory(), config(cap=1), config(cap=2)
    seen = []
    for now, wanted in ((1.0, older), (2.0, newer)):
        memory.should_have(wanted, now)
        seen.append(memory.behind_since)
    memory.has(older, InForce(config_digest="another"))
    memory.has(None, InForce())
    seen.append(memory.behind_since)
    memory.has(older, InForce(config_digest=older.digest))
    seen.append(memory.behind_since)
    memory.should_have(newer, 4.0)
    memory.accept(report(in_force=InForce(config_digest=newer.digest)), 5.0)
    seen.append(memory.behind_since)
    memory.should_have(newer, 6.0)
    assert [*seen, memory.behind_since] == [1.0, 1.0, 1.0, None, 4.0, None]
