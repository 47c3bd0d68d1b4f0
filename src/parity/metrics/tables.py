"""Tables as parquet."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.base.errors import ParityError
from parity.base.files import publish

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
    """Read a parquet file as a frame. Raises ParityError that names the file if it is damaged."""
    from pyarrow import parquet

    try:
        return parquet.read_table(path, page_checksum_verification=True).to_pandas()
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged parquet file raises errors of many classes
        raise ParityError(f"{path}: damaged ({error}); delete it and run again") from None
