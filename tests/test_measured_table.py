"""Tables of measurements: what a row becomes, and a message for every field that is none."""

import pytest

from lumos.errors import LumosError
from lumos.measured_table import positive, read_rows, table_number, whole_number


def test_rows_have_the_columns_of_the_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\ufeffa,b\n1,2\n3\n4,5,6\n", encoding="utf-8")  # a byte order mark, a short row and a long one
    columns, rows = read_rows(path)
    assert columns == ("a", "b")
    assert rows == [{"a": "1", "b": "2"}, {"a": "3", "b": ""}, {"a": "4", "b": "5"}]
    with pytest.raises(LumosError, match=r"t\.csv: line 3 has fewer fields"):
        read_rows(path, complete=True)


@pytest.mark.parametrize("content", [b"a,b\n\xff,1\n", b"a,b\n" + b"x" * 200_000 + b",1\n"])
def test_what_is_no_table_is_named(tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(LumosError, match=r"t\.csv: is not a CSV table"):
        read_rows(path)


@pytest.mark.parametrize(("text", "said"), [("", "the table is empty"), ("gpu;m;n\nH100;8;1\n", "line 1 has one column, 'gpu;m;n'")])
def test_a_table_has_columns_between_commas(tmp_path, text, said):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(LumosError, match=rf"t\.csv: {said}; .* with commas between them"):
        read_rows(tmp_path / "t.csv")


def test_numbers_of_fields():
    assert (table_number(" 1,024.5 ", "m"), positive("1e3", "m"), whole_number("1,024", "m"), whole_number("0", "m")) == (
        1024.5,
        1000.0,
        1024,
        0,
    )


@pytest.mark.parametrize("text", ["", "many", "1,2,3", "nan", "inf", "-1", "1e18", "1e999", "\ud83d"])
@pytest.mark.parametrize("read", [table_number, positive, whole_number])
def test_what_is_no_measurement_is_refused_by_name(read, text):
    with pytest.raises(LumosError, match=r"^memory = "):
        read(text, "memory")


def test_a_count_is_whole_and_a_time_is_positive():
    with pytest.raises(LumosError, match=r"^layers = '1.5' is not a whole number"):
        whole_number("1.5", "layers")
    with pytest.raises(LumosError, match=r"^time = '0' must be positive"):
        positive("0", "time")
