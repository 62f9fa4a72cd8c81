"""Models of the Hugging Face hub, with a package of the hub made by hand; nothing is fetched."""

from __future__ import annotations

import io
import sys
import types

import pytest
from hf_configs import LLAMA

from vmtool.errors import UnavailableError, UsageError
from vmtool.kv.sources import model_lookup
from vmtool.kv.weights import bytes_on_hub


@pytest.fixture
def fake_hub(monkeypatch, write_config):
    calls = []

    def download(repository, filename, **_):
        calls.append((repository, filename))
        if repository == "owner/missing":
            raise OSError("404")
        return write_config(LLAMA)

    module = types.ModuleType("huggingface_hub")
    module.hf_hub_download = download
    module.try_to_load_from_cache = lambda *_: None
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO())
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    bytes_on_hub.cache_clear()
    return calls


@pytest.mark.parametrize(
    "spec",
    ["owner/name", "https://huggingface.co/owner/name", "https://hf.co/owner/name/tree/main"],
)
def test_a_name_on_the_hub_and_its_address_are_fetched(fake_hub, spec):
    assert model_lookup.load(spec).name == "owner/name"
    assert fake_hub == [("owner/name", "config.json")]


def test_a_config_in_the_cache_is_not_fetched_again(fake_hub, monkeypatch, write_config):
    path = write_config({**LLAMA, "num_hidden_layers": 3})
    hub = sys.modules["huggingface_hub"]
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: path)
    assert len(model_lookup.load("owner/name").layers) == 3
    assert fake_hub == []


def test_a_hub_that_does_not_answer_is_reported_at_once(fake_hub, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.ModuleType("huggingface_hub"))
    monkeypatch.setattr("urllib.request.urlopen", _no_answer)
    hub = sys.modules["huggingface_hub"]
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: None, raising=False)
    monkeypatch.setattr(hub, "hf_hub_download", None, raising=False)
    with pytest.raises(UnavailableError, match="the hub does not answer"):
        model_lookup.from_hub("owner/name")


def _no_answer(*_, **__):
    raise OSError("Network is unreachable")


def test_only_the_config_is_fetched_from_the_hub(fake_hub):
    geometry = model_lookup.from_hub("owner/name")
    assert fake_hub == [("owner/name", "config.json")]
    assert (geometry.name, len(geometry.layers)) == ("owner/name", 4)
    assert geometry.provenance["layers"].where == "owner/name/config.json"


def test_the_weights_on_the_hub_are_what_their_index_says(fake_hub, monkeypatch, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 1234}, "weight_map": {}}')
    hub = sys.modules["huggingface_hub"]
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: str(index))
    assert bytes_on_hub("owner/name") == 1234
    assert fake_hub == []


def test_a_single_file_of_weights_on_the_hub_counts_as_large_as_it_is(fake_hub, monkeypatch):
    hub = sys.modules["huggingface_hub"]
    assert bytes_on_hub("owner/missing") is None  # this stand-in does not know the size of a file
    size = types.SimpleNamespace(size=77)
    monkeypatch.setattr(hub, "hf_hub_url", lambda *names: "/".join(names), raising=False)
    monkeypatch.setattr(hub, "get_hf_file_metadata", lambda *_, **__: size, raising=False)
    assert bytes_on_hub("owner/other") == 77


def test_a_failed_download_is_unavailable(fake_hub):
    with pytest.raises(UnavailableError, match="of owner/missing could not be fetched: 404"):
        model_lookup.from_hub("owner/missing")


@pytest.mark.parametrize("name", ["name", "a/b/c", "../etc/passwd", "a b/c", "https://x/y/z"])
def test_what_is_not_owner_and_name_is_refused(fake_hub, name):
    with pytest.raises(UsageError, match="owner/name"):
        model_lookup.from_hub(name)
    assert fake_hub == []


def test_without_the_optional_package_the_hub_is_unavailable(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnavailableError) as caught:
        model_lookup.from_hub("owner/name")
    assert "pip install 'vmtool[hub]'" in caught.value.hint
