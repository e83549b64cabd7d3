"""Trying a model on its page: what it is, fields for what it takes, its answer as bars beside the JSON."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import ShowPage
from tests.support.image_files import get_recording_path, photo
from tests.support.service_process import ServiceProcess

DROP = """(data) => {
  const files = new DataTransfer();
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  files.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
  return files;
}"""


def send(page: Page) -> Locator:
    """Presses the button above the endpoints; the answer that is then there."""
    page.locator(".attempt .send").click()
    return page.locator(".attempt .answer")


def bars(answer: Locator) -> list[tuple[str, str]]:
    """Labels and shares, as they stand below each other."""
    rows = answer.locator(".bars li")
    expect(rows.first).to_be_visible()
    names, shares = rows.locator(".name").all_text_contents(), rows.locator(".share").all_text_contents()
    return list(zip(names, shares, strict=True))


def prediction(service: ServiceProcess, body: bytes, media: str = "application/json") -> dict[str, Any]:
    """The first row of the answer over KServe v1."""
    answer = service.http(f"/v1/models/{service.name}:predict", body, headers={"content-type": media})
    assert answer.status == 200, answer
    row: dict[str, Any] = answer.json["predictions"][0]
    return row


def as_bars(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (label, f"{100 * score:.1f} %") for label, score in zip(row["labels"], row["scores"], strict=True)
    ]


def test_the_card_tells_what_the_model_is_and_that_it_is_ready(
    show: ShowPage, photos: ServiceProcess
) -> None:
    page = show(photos)
    card = page.locator(".card")
    expect(card.locator(".state")).to_have_text("ready, 1 of 1 instances")
    facts = dict(
        zip(card.locator("dt").all_text_contents(), card.locator("dd").all_text_contents(), strict=True)
    )
    assert facts["Task"] == "image classification"
    assert facts["Engine"] == "ONNX Runtime"
    assert facts["Version"] == "1"
    assert facts["Labels (10)"].startswith("antbeecat")
    assert page.title() == page.locator("h1").text_content() == "photos"


def test_the_card_says_when_a_model_is_not_ready_any_more(show: ShowPage, people: ServiceProcess) -> None:
    page = show(people)
    state = page.locator(".card .state")
    expect(state).to_have_text("ready, 1 of 1 instances")
    try:
        assert people.http("/v2/repository/models/people/unload", b"{}").status == 200
        send(page)
        expect(state).to_have_text("not ready, 0 of 0 instances")
    finally:
        assert people.http("/v2/repository/models/people/load", b"{}").status == 200
    expect(send(page).locator(".bars")).to_be_visible()
    expect(state).to_have_text("ready, 1 of 1 instances")


def test_a_text_is_sent_and_its_label_has_a_bar(show: ShowPage, words: ServiceProcess) -> None:
    page = show(words)
    field = page.get_by_label("text", exact=True)
    expect(field).to_have_value("text")  # the example
    field.fill("up")
    row = prediction(words, b'{"instances": [{"text": "up"}]}')
    assert bars(send(page)) == [(row["label"], f"{100 * row['score']:.1f} %")]
    shown = page.locator(".attempt .answer .json").text_content()
    assert json.loads(shown or "") == {"predictions": [row]}
    expect(page.locator(".attempt [role=status]")).to_contain_text("200 OK in ")


def test_a_picked_image_is_shown_and_sent_as_the_file_that_it_is(
    show: ShowPage, photos: ServiceProcess, tmp_path: Path
) -> None:
    file = tmp_path / "my photo.jpg"
    file.write_bytes(get_recording_path(photo(50, 40), "JPEG"))
    page = show(photos)
    page.get_by_label("image").set_input_files(file)
    expect(page.locator(".drop .caption")).to_have_text("my photo.jpg, 50 x 40 pixels")
    expect(page.locator(".drop canvas")).to_be_visible()
    with page.expect_request("**/v1/models/photos:predict") as asked:
        answer = send(page)
    assert asked.value.headers["content-type"] == "image/jpeg"
    assert bars(answer) == as_bars(prediction(photos, file.read_bytes(), "image/jpeg"))


def test_an_image_may_be_dropped_and_the_example_come_back(show: ShowPage, photos: ServiceProcess) -> None:
    page = show(photos)
    caption = page.locator(".drop .caption")
    expect(caption).to_contain_text("an example, 8 x 8 pixels")
    example = bars(send(page))
    dropped = get_recording_path(photo(33, 44))
    transfer = page.evaluate_handle(DROP, base64.b64encode(dropped).decode())
    page.dispatch_event(".drop", "drop", {"dataTransfer": transfer})
    expect(caption).to_have_text("dropped.png, 33 x 44 pixels")
    page.locator(".attempt .send").click()
    best = as_bars(prediction(photos, dropped, "image/png"))
    expect(page.locator(".bars .share").first).to_have_text(best[0][1])
    assert bars(page.locator(".attempt .answer")) == best != example
    page.get_by_role("button", name="Back to the example").click()
    expect(caption).to_contain_text("an example, 8 x 8 pixels")


def test_a_broken_image_is_refused_in_the_words_of_the_service(
    show: ShowPage, photos: ServiceProcess, tmp_path: Path
) -> None:
    file = tmp_path / "broken.png"
    file.write_bytes(get_recording_path(photo(50, 40))[:100])
    page = show(photos)
    page.get_by_label("image").set_input_files(file)
    expect(page.locator(".drop .caption")).to_contain_text("broken.png: this browser can't show it")
    answer = send(page)
    expect(answer.locator(".refusal")).to_contain_text("broken image")
    expect(page.locator(".attempt [role=status]")).to_contain_text("400")


def test_a_row_of_a_table_has_a_field_for_each_column(show: ShowPage, people: ServiceProcess) -> None:
    page = show(people)
    for name, text in (("age", "61"), ("hours", "12.50"), ("job", 'a "nurse"')):
        page.get_by_label(name, exact=True).fill(text)
    with page.expect_request("**/v1/models/people:predict") as asked:
        answer = send(page)
    # Numbers go as they were typed.
    assert asked.value.post_data == '{"instances": [{"age": 61, "hours": 12.50, "job": "a \\"nurse\\""}]}'
    row = prediction(people, (asked.value.post_data or "").encode())
    assert bars(answer) == [(row["label"], f"{100 * row['score']:.1f} %")]


def test_an_empty_cell_is_a_missing_value(show: ShowPage, gaps: ServiceProcess) -> None:
    page = show(gaps)
    for name, text in (("age", ""), ("job", "nurse")):
        page.get_by_label(name, exact=True).fill(text)
    with page.expect_request("**/v1/models/gaps:predict") as asked:
        answer = send(page)
    assert asked.value.post_data == '{"instances": [{"age": null, "job": "nurse"}]}'
    assert bars(answer) == [("yes", "88.1 %")]  # a missing age counts as 60


def test_a_csv_file_is_sent_in_place_of_the_cells_and_each_row_has_its_label(
    show: ShowPage, people: ServiceProcess, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("job,age,hours\nclerk,61,8.5\ndriver,20,40\n", "utf-8")
    page = show(people)
    picker, age = page.get_by_label("or rows of a CSV file"), page.get_by_label("age", exact=True)
    picker.set_input_files(file)
    expect(age).to_be_disabled()
    answer = send(page)
    expect(answer.locator(".caption")).to_have_text(["Row 0", "Row 1"])
    rows = json.loads(answer.locator(".json").text_content() or "")["predictions"]
    assert answer.locator(".bars .name").all_text_contents() == [row["label"] for row in rows]
    by_json = {"instances": [{"age": 61, "hours": 8.5, "job": "clerk"}]}
    assert rows[0] == prediction(people, json.dumps(by_json).encode())
    assert "--data-binary @'rows.csv'" in (page.locator(".attempt .commands pre").text_content() or "")
    page.get_by_role("button", name="Back to the example").click()
    expect(age).to_be_enabled()
    expect(send(page).locator(".caption")).to_have_count(0)


@pytest.mark.parametrize("typed", ["", "old", "1e", "0x10", "1,5"])
def test_what_is_no_number_is_told_at_its_field_and_not_sent(
    show: ShowPage, people: ServiceProcess, typed: str
) -> None:
    page = show(people)
    sent: list[str] = []
    page.on("request", lambda asked: sent.append(asked.method))
    field = page.get_by_label("hours", exact=True)
    field.fill(typed)
    page.locator(".attempt .send").click()
    expect(page.get_by_role("alert").filter(has_text="write a number")).to_be_visible()
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".attempt .commands")).to_be_hidden()
    field.fill("3")
    expect(page.get_by_role("alert")).to_have_count(0)
    assert "POST" not in sent


@pytest.mark.parametrize(("typed", "sent"), [("007", "7"), (".5", "0.5"), ("-2.", "-2"), ("1.e3", "1e3")])
def test_numbers_that_json_writes_otherwise_are_sent_as_it_does(
    show: ShowPage, people: ServiceProcess, typed: str, sent: str
) -> None:
    page = show(people)
    page.get_by_label("age", exact=True).fill(typed)
    with page.expect_response("**/v1/models/people:predict") as answered:
        page.locator(".attempt .send").click()
    assert f'"age": {sent},' in (answered.value.request.post_data or "")
    assert answered.value.status == 200


def test_any_number_of_labels_stand_out_among_the_scores_of_all(
    show: ShowPage, topics: ServiceProcess
) -> None:
    page = show(topics)
    page.get_by_role("textbox", name="x FP32").fill("[1, 1, 1, 1]")
    row = prediction(topics, b'{"instances": [{"x": [1, 1, 1, 1]}]}')
    scores = dict(zip(("economy", "sports", "culture"), row["scores"], strict=True))
    answer = send(page)
    best_first = sorted(scores.items(), key=lambda one: -one[1])
    assert bars(answer) == [(name, f"{100 * score:.1f} %") for name, score in best_first]
    meant = answer.locator(".bars li:not(.unmeant) .name").all_text_contents()
    assert set(meant) == set(row["scores_labels"]) and 0 < len(meant) < 3


def test_a_tensor_that_is_no_json_is_told_at_its_field(show: ShowPage, topics: ServiceProcess) -> None:
    page = show(topics)
    page.get_by_role("textbox", name="x FP32").fill("[1, 1, 1")
    page.locator(".attempt .send").click()
    expect(page.get_by_role("alert").filter(has_text="no JSON: ")).to_be_visible()


def test_a_model_without_an_example_takes_a_row_as_json(show: ShowPage, ensembles: ServiceProcess) -> None:
    page = show(ensembles)
    page.get_by_label("a row, as JSON").fill('{"word": "up"}')
    with page.expect_request("**/v1/models/test:predict") as asked:
        answer = send(page)
    assert asked.value.post_data == '{"instances": [{"word": "up"}]}'
    expect(answer.locator(".json")).to_contain_text('"word": "up"')


def test_markup_in_what_is_sent_and_answered_stays_text(show: ShowPage, ensembles: ServiceProcess) -> None:
    page = show(ensembles)
    markup = "<img src=x onerror=alert(1)><b>bold</b>"
    page.get_by_label("a row, as JSON").fill(json.dumps({"word": markup}))
    expect(send(page).locator(".json")).to_contain_text(json.dumps(markup))
    assert page.locator("main img, main .json b").count() == 0


def test_a_service_of_the_caller_s_own_labels_is_tried_with_those_of_its_example(
    show: ShowPage, zero_shot: ServiceProcess
) -> None:
    page = show(zero_shot)
    expect(page.locator(".card")).to_contain_text("labels of the caller's own")
    body = {"instances": [{"text": "text"}], "parameters": {"labels": "sports,finance"}}
    assert bars(send(page)) == as_bars(prediction(zero_shot, json.dumps(body).encode()))


def test_a_pair_of_texts_has_two_fields(show: ShowPage, pairs: ServiceProcess) -> None:
    page = show(pairs)
    row = {"text": "text", "text_pair": "text"}
    expected = prediction(pairs, json.dumps({"instances": [row]}).encode())
    assert bars(send(page)) == as_bars(expected)


def test_each_example_fills_the_form_with_one_click(
    show: ShowPage, people: ServiceProcess, photos: ServiceProcess, finder: ServiceProcess
) -> None:
    expected = {
        people: ["KServe v1", "Key/value", "KServe v2", "generate", "text/csv"],
        photos: ["KServe v1", "Key/value", "KServe v2", "generate", "image/png"],
        finder: [
            "KServe v1", "Key/value", "KServe v2", "generate", "OpenAI", "embed", "embed_all", "tokenize",
            "similarity",
        ],
    }  # fmt: skip
    for service, names in expected.items():
        page = show(service)
        buttons = page.get_by_role("group", name="Examples").get_by_role("button")
        assert set(buttons.all_text_contents()) == set(names)
        for name in reversed(names):
            button = page.get_by_role("group", name="Examples").get_by_role("button", name=name, exact=True)
            button.click()
            expect(button).to_be_focused()
            expect(button).to_have_attribute("aria-pressed", "true")
            page.locator(".attempt .send").first.click()  # another one compares two texts
            expect(page.locator(".attempt [role=status]").first).to_contain_text("200 OK")
            expect(page.locator(".attempt .refusal")).to_have_count(0)


def test_an_example_replaces_edits_and_its_protocol_is_kept(show: ShowPage, people: ServiceProcess) -> None:
    page = show(people)
    examples = page.get_by_role("group", name="Examples")
    examples.get_by_role("button", name="KServe v2").click()
    page.get_by_label("age", exact=True).fill("61")
    with page.expect_request("**/v2/models/people/infer") as asked:
        send(page)
    inputs = {tensor["name"]: tensor for tensor in json.loads(asked.value.post_data or "")["inputs"]}
    assert (inputs["age"]["shape"], inputs["age"]["data"], inputs["age"]["datatype"]) == ([1], [61], "FP32")
    page.reload()
    expect(page.get_by_label("age", exact=True)).to_have_value("61")
    examples.get_by_role("button", name="KServe v2").click()
    expect(page.get_by_label("age", exact=True)).to_have_value("1")
    page.get_by_role("button", name="中文").click()
    expect(page.get_by_role("group", name="示例").get_by_role("button", name="KServe v2")).to_have_attribute(
        "aria-pressed", "true"
    )
