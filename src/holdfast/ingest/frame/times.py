"""The times of samples: each its own, or each one of a table."""

from holdfast.ingest.frame.columns import Groups, Ints, Reader, all_of, least, most
from holdfast.ingest.frame.errors import FrameInvalid, Reason


def read_times(reader: Reader, groups: Groups, times: int) -> tuple[Ints | None, Ints]:
    """Which of the table's times each sample has (None if there is no table), and its time."""
    if not times:
        return None, reader.grouped(groups, related=True)
    table = read_table(reader, times)
    numbers = reader.grouped(groups, related=True)
    if least(numbers) < 0 or most(numbers) >= times:
        raise FrameInvalid(Reason.COLUMN, f"a sample has a time that is not among the {times}")
    return numbers, table[numbers]


def read_table(reader: Reader, times: int) -> Ints:
    table = reader.steps(times)
    if times > 1 and not all_of(table[1:] > table[:-1]):
        raise FrameInvalid(Reason.COLUMN, "the table of times is not in order")
    return table
