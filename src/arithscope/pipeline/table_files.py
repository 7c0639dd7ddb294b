"""Reading of tables within bounds. A parquet file of a few megabytes can hold hundreds of millions of equal rows, or one long
text many times over, so what a table takes in memory is computed before it is read."""

from pathlib import Path

import pandas as pd
import psutil
import pyarrow.compute as pc
import pyarrow.parquet as pq

MOST_ROWS = (
    50_000_000  # the largest table of a run, effects of Llama-3-70B's neurons under four operators, has 27 million
)
SHARE = 4  # a table may take this part of the available memory


def read_table(path: Path) -> pd.DataFrame:
    """Read a table. Raises ValueError if it has more rows than any run writes, or does not fit into memory."""
    rows = pq.read_metadata(path).num_rows
    if rows > MOST_ROWS:
        raise ValueError(f"it has {rows:,} rows, and no run writes more than {MOST_ROWS:,}")
    available, needed = psutil.virtual_memory().available // SHARE, _bytes_in_memory(path)
    if needed > available:
        raise ValueError(f"it takes {needed / 2**30:,.1f} GiB, but only {available / 2**30:,.1f} GiB may be used")
    return pd.read_parquet(path)


def _bytes_in_memory(path: Path) -> int:
    """Bytes that a table takes in memory: 8 for each value, or its own length, and the text of each row."""
    metadata, total, texts = pq.read_metadata(path), 0, []
    for i in range(metadata.num_columns):
        column = metadata.schema.column(i)
        chunks = [metadata.row_group(group).column(i) for group in range(metadata.num_row_groups)]
        total += max(8, column.length) * sum(chunk.num_values for chunk in chunks)
        if column.physical_type == "BYTE_ARRAY" and column.max_repetition_level == 0:
            texts.append(column.path)
        elif column.physical_type == "BYTE_ARRAY":  # lists of texts, which no run writes: at most this
            total += sum(chunk.num_values * chunk.total_uncompressed_size for chunk in chunks)
    for column in pq.read_table(path, columns=texts, read_dictionary=texts).columns if texts else ():  # each text once
        for chunk in column.chunks:
            lengths = pc.fill_null(pc.binary_length(chunk.dictionary), 0).take(chunk.indices)
            total += pc.sum(pc.cast(lengths, "int64")).as_py() or 0
    return total
