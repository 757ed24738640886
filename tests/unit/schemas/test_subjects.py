"""Subjects: escaping is reversible and safe, templates build and parse, patterns match as NATS does."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from schemas.registry import CHANNELS, ENDPOINTS
from schemas.subjects import (
    CFS,
    CONTAINER_EVENTS,
    LIMIT_UPDATES,
    MAX_TOKEN_CHARACTERS,
    Subject,
    SubjectError,
    SubjectTemplate,
    check_root,
    token,
    untoken,
    wildcard,
)

# Up to 12 bytes a character escaped (a lone surrogate takes 3 bytes, others up to 4), so 16 always fit into 200.
IDS = st.text(st.characters(exclude_categories=()), min_size=1, max_size=16)
ROOTS = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=12)
TEMPLATES = [channel.template for channel in CHANNELS] + [endpoint.template for endpoint in ENDPOINTS]
TOKENS = st.text("ab", min_size=1, max_size=2)


@given(IDS)
@example(".")
@example("=2E")
@example("/")
@example("gpu01.rack2.example.com")
@example("\ud800")
@example("\U0010ffff")
def test_any_id_survives_escaping(identifier: str) -> None:
    assert untoken(token(identifier)) == identifier


@given(IDS, IDS)
@example(".", "/")
@example("=2E", ".")
@example("a b", "a=20b")
def test_different_ids_have_different_tokens(one: str, other: str) -> None:
    assume(one != other)

    assert token(one) != token(other)


@given(IDS)
@example("*")
@example(">")
@example("a.b c\r\n\t\x00")
def test_a_token_holds_nothing_that_a_subject_forbids(identifier: str) -> None:
    escaped = token(identifier)

    assert escaped
    assert set(escaped) <= set(string.ascii_letters + string.digits + "_-=/")


def test_tokens_by_hand() -> None:
    assert token("gpu01.rack2") == "gpu01/rack2"
    assert token("a/b") == "a=2Fb"
    assert token("50 %") == "50=20=25"
    assert token("é") == "=C3=A9"


def test_an_empty_id_is_refused() -> None:
    with pytest.raises(SubjectError, match="must not be empty"):
        token("")


def test_an_id_may_fill_the_limit_but_not_pass_it() -> None:
    assert len(token("x" * MAX_TOKEN_CHARACTERS)) == MAX_TOKEN_CHARACTERS
    with pytest.raises(SubjectError, match="201 escaped characters"):
        token("x" * (MAX_TOKEN_CHARACTERS + 1))


@pytest.mark.parametrize("text", ["", "a.b", "=2E", "=41", "=c3=a9", "=C3", "=", "=G0", "é", "a b", "*", ">"])
def test_text_that_no_id_escapes_to_is_refused(text: str) -> None:
    with pytest.raises(SubjectError):
        untoken(text)


@given(st.text(max_size=40))
def test_unescaping_any_text_gives_its_id_or_a_subject_error(text: str) -> None:
    try:
        identifier = untoken(text)
    except SubjectError:
        return
    assert token(identifier) == text


@pytest.mark.parametrize("template", TEMPLATES, ids=str)
@given(data=st.data(), root=ROOTS)
def test_ids_survive_a_template(template: SubjectTemplate, data: st.DataObject, root: str) -> None:
    ids = {name: data.draw(IDS, label=name) for name in template.parameters}

    subject = template.subject(root, **ids)

    assert template.parse(root, str(subject)) == ids
    assert "*" not in str(subject).split(".")
    assert len(str(subject).split(".")) == len(f"{root}.{template.text}".split("."))


@pytest.mark.parametrize("template", TEMPLATES, ids=str)
@given(data=st.data(), root=ROOTS)
def test_every_pattern_of_a_template_covers_its_subjects(
    template: SubjectTemplate, data: st.DataObject, root: str
) -> None:
    ids = {name: data.draw(IDS, label=name) for name in template.parameters}
    given_ids = {name: value for name, value in ids.items() if data.draw(st.booleans(), label=f"fix {name}")}

    pattern = template.pattern(root, **given_ids)

    assert pattern.matches(template.subject(root, **ids))
    assert wildcard(root).matches(template.subject(root, **ids))
    assert ("*" in str(pattern).split(".")) == (given_ids.keys() != ids.keys())


@given(IDS, IDS, IDS)
def test_a_pattern_with_another_id_does_not_match(app: str, other: str, node: str) -> None:
    assume(app != other)

    assert not CFS.pattern("tb", app=other).matches(CFS.subject("tb", app=app, node=node))


def test_templates_do_not_cover_each_other() -> None:
    for one in TEMPLATES:
        for other in TEMPLATES:
            concrete = other.subject("tb", **dict.fromkeys(other.parameters, "limits"))
            assert one.pattern("tb").matches(concrete) == (one == other)


def naive_match(pattern: list[str], subject: list[str]) -> bool:
    """The definition of NATS' documentation, as a recursion."""
    if not pattern or not subject:
        return not pattern and not subject
    if pattern[0] == ">":
        return True
    return pattern[0] in {"*", subject[0]} and naive_match(pattern[1:], subject[1:])


@given(
    st.lists(TOKENS | st.just("*"), min_size=1, max_size=4),
    st.booleans(),
    st.lists(TOKENS, min_size=1, max_size=5),
)
def test_matching_agrees_with_the_definition(head: list[str], open_end: bool, subject: list[str]) -> None:
    pattern = [*head, ">"] if open_end else head

    assert Subject(".".join(pattern)).matches(Subject(".".join(subject))) == naive_match(pattern, subject)


def test_kinds_are_those_of_the_grammar() -> None:
    assert {template.kind for template in TEMPLATES} == {"obs", "evt", "cmd"}
    assert CONTAINER_EVENTS.kind == "evt"
    assert LIMIT_UPDATES.parameters == ("node",)


@pytest.mark.parametrize("ids", [{}, {"app": "a"}, {"app": "a", "node": "n", "rack": "r"}])
def test_missing_or_unknown_ids_are_named(ids: dict[str, str]) -> None:
    with pytest.raises(SubjectError, match="ids do not fit"):
        CFS.subject("tb", **ids)


def test_a_pattern_refuses_an_unknown_id() -> None:
    with pytest.raises(SubjectError, match=r"unknown ids: \['rack'\]"):
        CFS.pattern("tb", rack="r")


@pytest.mark.parametrize(
    "subject", ["tb.obs.cfs.a", "tb.obs.cfs.a.b.c", "xx.obs.cfs.a.b", "tb.evt.cfs.a.b", "tb.obs.cfs.a.=zz", ""]
)
def test_a_subject_of_another_form_does_not_parse(subject: str) -> None:
    with pytest.raises(SubjectError):
        CFS.parse("tb", subject)


@pytest.mark.parametrize("root", ["", "a.b", "*", ">", "a b", "tb\n", "é", "a/b"])
def test_a_root_is_one_plain_token(root: str) -> None:
    with pytest.raises(SubjectError, match="subject root"):
        check_root(root)
    with pytest.raises(SubjectError, match="subject root"):
        CFS.pattern(root)


@pytest.mark.parametrize(
    ("typed", "text"),
    [(">", "tb.>"), ("obs.>", "tb.obs.>"), ("tb.obs.>", "tb.obs.>"), ("tb", "tb"), ("evt.*.shop.*", "tb.evt.*.shop.*")],
)
def test_a_typed_pattern_is_put_below_the_root(typed: str, text: str) -> None:
    assert wildcard("tb", typed).text == text


@pytest.mark.parametrize("typed", ["", "a..b", ".a", "a.", "a b", "a.\tb", ">.a", "obs.>.x", "a.\n"])
def test_a_typed_pattern_that_is_no_subject_is_refused(typed: str) -> None:
    with pytest.raises(SubjectError, match="is no subject"):
        wildcard("tb", typed)
