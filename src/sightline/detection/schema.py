"""The columns of what is found."""

import pyarrow as pa

BOX = pa.struct(
    [
        pa.field("label", pa.string(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("xmin", pa.float32(), nullable=False),
        pa.field("ymin", pa.float32(), nullable=False),
        pa.field("xmax", pa.float32(), nullable=False),
        pa.field("ymax", pa.float32(), nullable=False),
    ]
)
"""One detection, in pixels of the upright image."""

IMAGES = pa.schema(
    [
        pa.field("image_id", pa.string(), nullable=False),
        pa.field("uri", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("stage", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("num_detections", pa.int32(), nullable=False),
        pa.field("boxes", pa.list_(pa.field("item", BOX, nullable=False)), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("chunk", pa.string(), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        pa.field("model_version", pa.string(), nullable=False),
    ]
)
"""One row is one image of the source, whether it could be used (`status` "ok") or not ("rejected")."""

DETECTIONS = pa.schema(
    [
        pa.field("image_id", pa.string(), nullable=False),
        pa.field("uri", pa.string(), nullable=False),
        *BOX,
        pa.field("model", pa.string(), nullable=False),
        pa.field("model_version", pa.string(), nullable=False),
    ]
)
"""One row is one box: the flat form of `images`."""

OK, REJECTED = "ok", "rejected"
UNREAD = "read"
"""The stage of images that were rejected because they could not be read: they are tried again by every run, and give
way to the result of any run that could read them."""


def flatten(images: pa.Table) -> pa.Table:
    """The detections of some rows of `images`, one row a box."""
    import pyarrow.compute as pc

    boxes = images.column("boxes").combine_chunks()
    parents = pc.list_parent_indices(boxes)
    struct = pc.list_flatten(boxes)
    taken = {name: images.column(name).take(parents) for name in ("image_id", "uri", "model", "model_version")}
    columns = {**taken, **dict(zip((field.name for field in BOX), struct.flatten(), strict=True))}
    return pa.table([columns[name] for name in DETECTIONS.names], schema=DETECTIONS)
