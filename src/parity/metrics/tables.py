"""Tables as parquet."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.base.errors import ParityError
from parity.base.files import publish, replace_whole

if TYPE_CHECKING:
    import pandas as pd


def write_table(path: Path, columns: dict[str, Any]) -> None:
    """Write columns of equal lengths as parquet, with a checksum in every page, which `read_table` verifies."""
    import pyarrow
    from pyarrow import parquet

    stream = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), stream, write_page_checksum=True)
    publish(path, stream.getvalue())


def read_table(path: Path) -> "pd.DataFrame":
    """Read a parquet file as a frame, except for columns that have a list a row, which take most of its memory. Raises
    ParityError that names the file if it is damaged."""
    from pyarrow import parquet, types

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = [field.name for field in file.schema_arrow if not types.is_list(field.type)]
            return file.read(columns=names).to_pandas()
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged parquet file raises errors of many classes
        raise ParityError(f"{path}: damaged ({error}); delete it and run again") from None


def join_tables(path: Path, files: Sequence[tuple[Path, dict[str, str]]]) -> None:
    """Write the rows of parquet files to one file, each with columns of one value before its own; a column that a file
    lacks is empty there. One file is held at a time, however many there are."""
    import pyarrow
    from pyarrow import parquet

    def add_constants(table: Any, values: dict[str, str]) -> Any:
        own = table.drop_columns([name for name in values if name in table.column_names])
        constant = {name: pyarrow.array([value] * len(table), pyarrow.string()) for name, value in values.items()}
        return pyarrow.table({**constant, **dict(zip(own.column_names, own.columns, strict=True))})

    schemas = [add_constants(parquet.read_schema(file).empty_table(), values).schema for file, values in files]
    schema = pyarrow.unify_schemas(schemas or [pyarrow.schema([])], promote_options="permissive")
    with replace_whole(path) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for file, values in files:
            table = add_constants(parquet.read_table(file, page_checksum_verification=True), values)
            writer.write_table(pyarrow.concat_tables([schema.empty_table(), table], promote_options="permissive"))
