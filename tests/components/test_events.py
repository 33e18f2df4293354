from thaw.components import events


def test_an_event_is_one_line_and_is_read_back_behind_a_prefix(capsys):
    events.emit("progress", stage="train-frozen", step=3, note="two\nlines")
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert events.parse("10:02:03 [rank0]: " + line) == {
        "event": "progress",
        "stage": "train-frozen",
        "step": 3,
        "note": "two\nlines",
    }


def test_a_line_that_only_looks_like_an_event_is_none():
    assert events.parse('{"event": broken') is None
    assert events.parse("loss 0.5") is None
