"""What holds while somebody edits the files: never half a file, never nothing because of a slip."""

from kvquota_cli.manifests.last_good import InForce, LastGood
from kvquota_cli.manifests.places import Finding, Place

GOOD = "apiVersion: v1\nkind: A\n"
OTHER = "apiVersion: v1\nkind: B\n"
BROKEN = "apiVersion: v1\nkind: [\n"
UNREADABLE = Finding(Place("a.yaml", 1), "cannot be read: Permission denied")


def kinds(force: InForce | None) -> list[str] | None:
    return None if force is None else [f"{each.place.file} {each.content['kind']}" for each in force.documents]


def test_at_the_first_look_everything_counts_even_nothing() -> None:
    assert kinds(LastGood().see({"b.yaml": OTHER, "a.yaml": GOOD})) == ["a.yaml A", "b.yaml B"]
    assert LastGood().see({}) == InForce()


def test_the_same_again_is_no_news() -> None:
    files = LastGood()
    files.see({"a.yaml": GOOD})
    assert [files.see({"a.yaml": GOOD}) for _ in range(3)] == [None, None, None]


def test_a_change_counts_at_the_second_look_that_sees_it() -> None:
    files = LastGood()
    files.see({"a.yaml": GOOD})
    assert files.see({"a.yaml": OTHER}) is None
    assert kinds(files.see({"a.yaml": OTHER})) == ["a.yaml B"]


def test_a_file_that_is_being_written_does_not_count_until_it_rests() -> None:
    files = LastGood()
    files.see({"a.yaml": GOOD})
    whole = GOOD + "---\n" + OTHER
    assert [files.see({"a.yaml": whole[:end]}) for end in (0, 10, len(GOOD), len(whole) - 3, len(whole))] == [None] * 5
    assert kinds(files.see({"a.yaml": whole})) == ["a.yaml A", "a.yaml B"]


def test_a_file_that_is_gone_between_two_looks_of_an_editor_is_not_gone() -> None:
    files = LastGood()
    files.see({"a.yaml": GOOD})
    assert files.see({}) is None
    assert files.see({"a.yaml": OTHER}) is None
    assert kinds(files.see({"a.yaml": OTHER})) == ["a.yaml B"]


def test_a_deleted_file_takes_its_documents_and_its_finding_with_it() -> None:
    files = LastGood()
    files.see({"a.yaml": GOOD, "b.yaml": BROKEN})
    files.see({})
    assert files.see({}) == InForce()
    assert files.see({}) is None


def test_a_broken_edit_keeps_the_last_good_documents_and_the_other_files_take_effect() -> None:
    files = LastGood()
    files.see({"a.yaml": GOOD, "b.yaml": GOOD})
    files.see({"a.yaml": BROKEN, "b.yaml": OTHER})
    force = files.see({"a.yaml": BROKEN, "b.yaml": OTHER})
    assert kinds(force) == ["a.yaml A", "b.yaml B"]
    assert force is not None
    assert [str(each.place) for each in force.findings] == ["a.yaml:3"]


def test_a_repaired_edit_takes_effect_and_its_finding_goes() -> None:
    files = LastGood()
    files.see({"a.yaml": BROKEN})
    files.see({"a.yaml": GOOD})
    force = files.see({"a.yaml": GOOD})
    assert kinds(force) == ["a.yaml A"]
    assert force is not None
    assert force.findings == ()


def test_a_file_that_cannot_be_opened_keeps_its_last_good_documents() -> None:
    files = LastGood()
    files.see({"a.yaml": GOOD})
    files.see({"a.yaml": UNREADABLE})
    assert files.see({"a.yaml": UNREADABLE}) == InForce(LastGood().see({"a.yaml": GOOD}).documents, (UNREADABLE,))  # type: ignore[union-attr]  # a file that could not be read
