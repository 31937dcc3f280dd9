"""Arrow data as what it is stored as, whatever extension types other libraries have registered.

A file names the extension types of its columns. Where a library that is loaded has registered one, its own code turns
cells into Python values: Ray's pickled objects, say, are unpickled. Strangers' files are therefore read without them.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa


def plain_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches, with the storage of extension types in their place."""
    return map(_plain_batch, batches)


def _plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    types = [plain_type(field.type) for field in batch.schema]
    if types == batch.schema.types:
        return batch
    columns = [column.cast(kind) for column, kind in zip(batch.columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that values of a type are stored as, also within lists, structs, maps and dictionaries."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_dictionary(kind):
        values = plain_type(kind.value_type)
        return kind if values == kind.value_type else values
    for is_list, make in (
        (pa.types.is_list, pa.list_),
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_fixed_size_list, lambda field: pa.list_(field, kind.list_size)),
    ):
        if is_list(kind):
            return make(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind
