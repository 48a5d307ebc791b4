"""What becomes of the quotas when the plan changes: what each was worth, and until when that is remembered."""

from dataclasses import replace

import pytest

import reconcile_builders as make
from kvquota_api.meta import REVIEWED_ANNOTATION

OLD = make.pool()
NEW = make.pool(model__kvCacheDtype="fp8")
NEWER = make.pool(model__maxModelLen=16_384)
INVALID = make.pool(memory__kvPool={"percent": 95})
HASH = {name: make.plan_hash(pool) for name, pool in (("old", OLD), ("new", NEW), ("newer", NEWER))}
SOFT = {"blocks": 7_372, "tokens": 117_952}
HARD = {"blocks": 11_058, "tokens": 176_928}
BEFORE = {"planHash": HASH["old"], "generation": 1, "soft": SOFT, "hard": HARD}
WITHOUT_REPORTS = {"pods": (), "reports": {}}


def accepted(pool, plan_hash):
    metadata = pool.metadata.model_copy(update={"annotations": {REVIEWED_ANNOTATION: plan_hash}})
    return pool.model_copy(update={"metadata": metadata})


class Story:
    """One pool through its changes, each carried out before the next."""

    def __init__(self, **fields):
        self.observed = make.observed(**WITHOUT_REPORTS, **fields)
        self.plan = self.carry_out()

    def carry_out(self):
        self.plan = make.reconcile(self.observed, make.NOW, make.WALL)
        self.observed = make.carried_out(self.observed, self.plan)
        return self.plan

    def then(self, **fields):
        self.observed = replace(self.observed, **fields)
        self.carry_out()
        return self

    def edit(self, name, **spec):
        """The quota is written anew."""
        self.observed = replace(
            self.observed,
            quotas=tuple(
                replace(each, quota=make.quota(name, generation=2, **spec))
                if each.quota.metadata.name == name
                else each
                for each in self.observed.quotas
            ),
        )
        self.carry_out()
        return self

    @property
    def waiting(self):
        return {name: status["reviewed"] for name, status in self.plan.quota_statuses.items() if "reviewed" in status}

    @property
    def condition(self):
        return make.condition(self.plan.pool_status, "QuotaReviewed")


REVIEWED = ("True", "Reviewed", "every quota was made, edited or reviewed for the plan in force")


def test_quotas_that_never_saw_another_plan_have_nothing_to_review():
    story = Story()
    assert (story.condition, story.waiting) == (REVIEWED, {})
    assert {each["planHash"] for each in story.plan.quota_statuses.values()} == {HASH["old"]}


def test_a_change_of_the_plan_asks_for_a_review_with_what_changes():
    story = Story().then(pool=NEW)
    batch = story.waiting["batch"]
    assert story.waiting["search"] == BEFORE
    assert story.condition == (
        "False",
        "PlanChanged",
        "the model, its types, its context or its parallelism changed, and 2 quotas were not reviewed since: edit what"
        " should change, or accept it as it is with `kubectl annotate kvmp llama-8b --overwrite"
        f" kvquota.dev/reviewed-plan={HASH['new']}`. Meanwhile they hold on each pod by the"
        " plan that it was started with."
        " batch: soft 1,250 blocks (20,000 tokens) -> 1,250 blocks (20,000 tokens),"
        " hard 4,096 blocks (65,536 tokens) -> 8,192 blocks (131,072 tokens);"
        " search: soft 7,372 blocks (117,952 tokens) -> 14,745 blocks (235,920 tokens),"
        " hard 11,058 blocks (176,928 tokens) -> 22,117 blocks (353,872 tokens)",
    )
    assert (batch["planHash"], batch["hard"]) == (HASH["old"], {"blocks": 4_096, "tokens": 65_536})


@pytest.mark.parametrize(
    ("named", "told"),
    [
        pytest.param(
            "deadbeef", "`. It names 'deadbeef' now, which is not that plan. Meanwhile", id="a slip of the pen"
        ),
        pytest.param(
            HASH["old"], f"`. It names '{HASH['old']}' now, which is not that plan. Meanwhile", id="an old one"
        ),
        pytest.param("x" * 500, f"`. It names '{'x' * 58}… now, which is not that plan. Meanwhile", id="a long one"),
    ],
)
def test_an_annotation_that_names_another_plan_is_told(named, told):
    assert told in Story().then(pool=accepted(NEW, named)).condition[2]


def test_it_is_enforced_all_the_same():
    story = Story().then(pool=NEW)
    assert story.plan.quota_statuses["search"]["hard"]["blocks"] == 22_117
    assert make.condition(story.plan.quota_statuses["search"], "Ready")[0] == "True"


def test_it_stays_so_whatever_happens_and_however_often_the_operator_starts():
    story = Story().then(pool=NEW)
    first = story.condition
    for _ in range(3):
        story.carry_out()
    assert (story.condition, story.waiting["search"]) == (first, BEFORE)


def test_a_status_of_the_pool_that_is_lost_changes_nothing():
    story = Story().then(pool=NEW).then(pool_status={})
    assert (story.condition[1], story.waiting["search"]) == ("PlanChanged", BEFORE)


def test_of_several_changes_the_first_and_the_last_are_compared():
    story = Story().then(pool=NEW).then(pool=NEWER)
    assert story.waiting["search"] == BEFORE
    assert "search: soft and hard are worth the same" in story.condition[2]


@pytest.mark.parametrize(
    ("pool", "reviewed"),
    [
        pytest.param(accepted(NEW, HASH["new"]), True, id="the annotation names the plan"),
        pytest.param(accepted(NEW, HASH["old"]), False, id="the annotation names another one"),
        pytest.param(OLD, True, id="the plan is again what it was"),
        pytest.param(INVALID, None, id="an invalid plan asks for nothing"),
        pytest.param(make.unread_pool(), None, id="a pool that does not parse asks for nothing"),
    ],
)
def test_when_it_is_reviewed(pool, reviewed):
    story = Story().then(pool=NEW).then(pool=pool)
    statuses = {True: ("True", "Reviewed"), False: ("False", "PlanChanged"), None: ("Unknown", "NoPlan")}
    assert story.condition[:2] == statuses[reviewed]
    assert story.waiting == ({} if reviewed else {"search": BEFORE, "batch": story.waiting["batch"]})


def test_what_was_accepted_once_is_asked_again_for_the_next_plan():
    story = Story().then(pool=accepted(NEW, HASH["new"])).then(pool=accepted(NEWER, HASH["new"]))
    assert story.condition[1] == "PlanChanged"
    assert story.waiting["search"]["planHash"] == HASH["new"]


def test_an_invalid_plan_in_between_forgets_nothing():
    story = Story().then(pool=INVALID).then(pool=NEW)
    assert (story.condition[1], story.waiting["search"]) == ("PlanChanged", BEFORE)
    story.then(pool=INVALID).then(pool=NEW)
    assert story.waiting["search"] == BEFORE


def test_a_quota_that_was_edited_since_is_reviewed_and_the_others_wait():
    story = Story().then(pool=NEW).edit("search", tier="gold")
    assert (set(story.waiting), "1 quota was not reviewed" in story.condition[2]) == ({"batch"}, True)
    story.edit("batch", kv={"hard": {"percent": 10}})
    assert (story.condition, story.waiting) == (REVIEWED, {})


def test_a_quota_that_came_since_or_went_has_nothing_to_review():
    story = Story().then(pool=NEW)
    story.then(quotas=(*(each for each in story.observed.quotas if each.quota.metadata.name == "search"),))
    story.then(quotas=(*story.observed.quotas, *make.seen(make.quota("new"))))
    assert set(story.waiting) == {"search"}


def test_a_revision_alone_asks_too():
    story = Story().then(pool=make.pool(model__revision="2027-01-01"))
    assert story.condition[1] == "PlanChanged"
    assert story.condition[2].endswith(
        "batch: soft and hard are worth the same; search: soft and hard are worth the same"
    )


def test_the_sentence_is_bounded():
    quotas = make.seen(*(make.quota(f"q{number}", age=number) for number in range(8)))
    story = Story(quotas=quotas).then(pool=NEW)
    told = story.condition[2]
    assert ("8 quotas were" in told, "q4: " in told, "q5: " in told) == (True, True, False)
    assert told.endswith("; and 3 more, each with what it was in its status.reviewed")


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"planHash": 7, "observedGeneration": 1}, id="a hash of another kind"),
        pytest.param({"planHash": "other"}, id="no generation"),
        pytest.param({"observedGeneration": 1}, id="no hash"),
    ],
)
def test_a_status_that_somebody_spoilt_asks_for_nothing(status):
    first = make.example_quotas()
    story = Story(quotas=tuple(replace(each, status=status) for each in first))
    assert (story.condition, story.waiting) == (REVIEWED, {})


def test_a_quota_without_a_share_was_worth_nothing():
    stored = {"planHash": HASH["new"], "observedGeneration": 1}
    story = Story(quotas=(replace(make.example_quotas()[0], status=stored),))
    assert story.condition[2].endswith(
        "search: soft nothing -> 7,372 blocks (117,952 tokens), hard nothing -> 11,058 blocks (176,928 tokens)"
    )


def test_the_event_says_first_what_to_do():
    before = Story().observed
    (event,) = make.reconcile(replace(before, pool=NEW), make.NOW, make.LATER).events
    assert (event.kind, event.type, event.reason) == ("ModelPool", "Warning", "PlanChanged")
    assert event.message.index("kubectl annotate") < 300
