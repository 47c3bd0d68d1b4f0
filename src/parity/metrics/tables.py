"""Tables as parquet, sealed: what is read is what was written, or one line says that the file is damaged."""

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.base.errors import ParityError
from parity.base.files import MARK, SEAL, publish, seal

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = "columns"


def content(table: Any) -> str:
    """The seal of a table's columns, names and values; a type may have another name once it is read."""
    return seal({COLUMNS: json.dumps(table.to_pydict(), default=str)})


def write_table(path: Path, columns: dict[str, Any]) -> None:
    """A column each, of equal lengths."""
    import pyarrow
    from pyarrow import parquet

    table, stream = pyarrow.table(columns), io.BytesIO()
    parquet.write_table(table.replace_schema_metadata({SEAL: content(table)}), stream)
    publish(path, stream.getvalue())


def read_table(path: Path) -> "pd.DataFrame":
    """ParityError that names the file if it is not whole, or is sealed and holds something else than was written."""
    from pyarrow import parquet

    data = path.read_bytes()
    try:
        table = parquet.read_table(io.BytesIO(data))
        said = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        told = SEAL in said or any(v.startswith(MARK) for v in said.values())
        whole = not told or said.get(SEAL) == content(table)
        frame = table.to_pandas()
    except Exception as error:  # a damaged file raises ArrowInvalid, OSError, thrift's errors, unicode ...
        raise ParityError(f"{path}: damaged ({error}); delete it and run again") from None
    if not whole:
        raise ParityError(f"{path}: damaged (its checksum is another); delete it and run again")
    return frame
