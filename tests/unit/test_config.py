"""Settings: one source of defaults, and clear words when they are wrong."""

from pathlib import Path

import pytest

from sightline.config import Config, load_config
from sightline.errors import ConfigError, NotFoundError


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "sightline.toml"
    file.write_text('[ingest]\nverify = "header"\nworkers = 3\nmax_rejected = 0.5\n')
    config = load_config(file, sets=("ingest.workers=4", "ingest.max_rejected=0.25"), flags={"ingest": {"workers": 5}})
    assert (config.ingest.verify, config.ingest.workers, config.ingest.max_rejected) == ("header", 5, 0.25)


def test_flags_that_were_not_given_change_nothing() -> None:
    assert load_config(sets=("ingest.workers=4",), flags={"ingest": {"workers": None}}).ingest.workers == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ingest.classes=['a','b']", ("a", "b")),
        ("ingest.stratify=true", True),
        ("ingest.query=select 1", "select 1"),
        ("ingest.split=train=0.5,val=0.5", "train=0.5,val=0.5"),
    ],
)
def test_set_reads_toml_values_and_plain_text(text: str, value: object) -> None:
    assert getattr(load_config(sets=(text,)).ingest, text.partition("=")[0].partition(".")[2]) == value


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("ingest.verfy=full",), r"'ingest.verfy' does not exist; known here: format, split"),
        (("nothing.x=1",), r"'nothing' does not exist; known here: decode, ingest"),
        (("ingest.workers=-1",), r"'ingest.workers' has value -1"),
        (("ingest",), r"not section.key=value"),
        (("ingest.=3",), r"not section.key=value"),
        (("decode.max_pixels='many'",), r"'decode.max_pixels' has value 'many'"),
    ],
)
def test_wrong_settings_are_named(sets: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(sets=sets)


def test_config_file_problems(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("ingest = [")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(tmp_path / "bad.toml")
    (tmp_path / "flat.toml").write_text("ingest = 3")
    with pytest.raises(ConfigError, match="is a section"):
        load_config(tmp_path / "flat.toml", sets=("ingest.workers=1",))


def test_every_setting_is_described() -> None:
    for name, section in Config.model_fields.items():
        for key, setting in section.annotation.model_fields.items():  # type: ignore[union-attr]
            assert setting.description, f"{name}.{key} has no description"
