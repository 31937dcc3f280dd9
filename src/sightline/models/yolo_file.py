"""ONNX files of strangers, read as data: whole, standing alone, made of ONNX's own operators."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sightline.data.disk import read_file, read_patiently
from sightline.errors import FormatError, MissingExtraError, NotFoundError

_DOMAINS = ("", "ai.onnx")
_ADVICE = "export the model again, as one file of ONNX's own operators"


def read_onnx_bytes(file: Path) -> bytes:
    """The bytes of a file that `parse_onnx` may take; one that is too large is not read."""
    if not file.exists():
        raise NotFoundError(f"{str(file)!r} is not there")
    try:
        return read_patiently(lambda: read_file(str(file)), what=f"read {str(file)!r}")
    except OSError as error:
        raise FormatError(f"{str(file)!r} cannot be read: {error}") from None


def parse_onnx(content: bytes, shown: str) -> Any:
    """The ModelProto in some bytes; nothing in it is run.

    Args:
        shown: Where they are from, for messages.

    Raises:
        FormatError: They are no ONNX model, refer to other files, or need operators that are not ONNX's own.
    """
    onnx = onnx_library()
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf has several, of C++ and of Python.
        raise FormatError(f"{shown!r} is not an ONNX file, or not a whole one: {_first_line(error)}") from None
    # Before the checker, which would look for the files that a model refers to.
    _refuse_foreign(model, shown)
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # Its own ValidationError, and what C++ throws at broken fields.
        raise FormatError(f"{shown!r} is not a valid ONNX model: {_first_line(error)}") from None
    return model


def onnx_library() -> Any:
    """The package `onnx`."""
    try:
        import onnx
        import onnx.checker
    except ImportError:
        raise MissingExtraError("onnx", "engines") from None
    return onnx


def graphs_of(graph: Any) -> Iterator[Any]:
    """A graph and all graphs inside its nodes: branches and bodies of loops."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.ByteSize():
                    yield from graphs_of(inner)


def _refuse_foreign(model: Any, shown: str) -> None:
    if model.functions or model.training_info:
        raise FormatError(f"{shown!r} brings functions or training steps of its own, which are not taken: {_ADVICE}")
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if node.domain not in _DOMAINS:
                raise FormatError(
                    f"{shown!r} needs the operator {node.op_type[:80]!r} of {node.domain[:80]!r}, which is not one of "
                    f"ONNX's own: {_ADVICE}"
                )
        for tensor in _tensors(graph):
            if tensor.external_data or tensor.data_location != tensor.DEFAULT:
                raise FormatError(
                    f"{shown!r} keeps {tensor.name[:80]!r} in another file, and files that a model refers to are never "
                    f"opened: {_ADVICE}"
                )


def _tensors(graph: Any) -> Iterator[Any]:
    """Every tensor that a graph holds, inner graphs apart."""
    sparse = [*graph.sparse_initializer]
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            sparse += [attribute.sparse_tensor, *attribute.sparse_tensors]
    for tensor in sparse:
        yield from (tensor.values, tensor.indices)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
