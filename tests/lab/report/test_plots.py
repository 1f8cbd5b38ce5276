from relbo.lab.report.plots import short_number


def test_tick_labels_are_short_and_never_milli():
    labels = [short_number(value) for value in (0.0, 0.6, 2.4, 750.0, 1_000.0, 150_000.0)]
    assert labels == ["0", "0.6", "2.4", "750", "1k", "150k"]
