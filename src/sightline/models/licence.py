"""What a model's licence asks of those who use it, said once each: in training, import and registration."""

_FREE = ("Apache-2.0", "BSD-3-Clause", "MIT")


def licence_note(model: str, licence: str) -> str | None:
    """What there is to say of a licence; nothing of those that ask for a notice only.

    Args:
        model: The architecture.

    >>> licence_note("nano", "Apache-2.0")
    >>> licence_note("yolov8n", "AGPL-3.0")[:36]
    'licence of model yolov8n: AGPL-3.0. '
    """
    if licence in _FREE:
        return None
    said = f"licence of model {model}: {licence}"
    if licence.upper().startswith("AGPL"):
        return (
            f"{said}. Who offers others a program or a service with it owes them its source under the same licence, "
            "unless its owner licensed it to them otherwise"
        )
    return said
