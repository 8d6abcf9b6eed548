"""Families that other packages bring: the package of docs/other_models.md, and packages that are not right."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import transformers

from fixtures.doc_blocks import blocks_of
from fixtures.installed import install
from fixtures.tiny_checkpoints import FAMILIES, SIZES, save_random
from fixtures.transformers_pair import SCENARIOS, check_scenario, decode, pair_of
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.models.checkpoint_model import TokenModel
from mysglang.srt.models.registry import how_served, model_class

PAGE = Path(__file__).parents[3] / "docs" / "other_models.md"
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
WINDOW_LAYERS = ["full_attention", "sliding_attention", "full_attention"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the page's package, built from its files as the page has them."""
    folder = tmp_path_factory.mktemp("package")
    page = [block for block in blocks_of(PAGE.name, PAGE.read_text()) if block.not_run == "a file of a package"]
    files = {block.code.split('"""')[1]: block.code for block in page}
    toml = next(block for block in blocks_of(PAGE.name, PAGE.read_text()) if block.language == "toml")
    files[toml.options["title"]] = toml.code
    for name, code in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    done = subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


@pytest.fixture
def example(site: Path, wheel: Path) -> None:
    """The package of the page, installed."""
    zipfile.ZipFile(wheel).extractall(site)


@pytest.mark.usefixtures("example")
def test_the_family_of_the_page(tmp_path: Path) -> None:
    config = transformers.MinistralConfig(**SIZES, head_dim=16, layer_types=WINDOW_LAYERS, sliding_window=20)
    theirs = save_random(config, tmp_path)
    rename(tmp_path, "MinistralForCausalLM", "WindowLlamaForCausalLM")
    pair = pair_of(theirs, tmp_path, torch.float32)
    assert [spec.window for spec in pair.ours.attention_specs()] == [None, 20, None]
    for scenario in SCENARIOS:
        check_scenario(pair, scenario, page_size=16)
    assert how_served("WindowLlamaForCausalLM").by == "mysglang"


@pytest.mark.usefixtures("example")
def test_the_class_of_the_page(tmp_path: Path) -> None:
    theirs = save_random(FAMILIES["llama"](logit_temperature=2.5), tmp_path)
    rename(tmp_path, "LlamaForCausalLM", "TemperedForCausalLM")
    pair = pair_of(theirs, tmp_path, torch.float32)
    for logits in pair.expected.values():
        logits /= 2.5
    assert type(pair.ours).__name__ == "TemperedLM"
    check_scenario(pair, decode, page_size=16)


@pytest.mark.usefixtures("example")
def test_vectors_of_a_family_of_a_package(tmp_path: Path) -> None:
    save_random(FAMILIES["llama"](), tmp_path)
    rename(tmp_path, "LlamaForCausalLM", "WindowLlamaForCausalLM")
    found = ModelConfig.from_path(str(tmp_path), is_embedding=True)
    assert found.architecture == "WindowLlamaModel" and found.pooling is not None


def rename(folder: Path, architecture: str, other: str) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace(architecture, other))


@pytest.mark.parametrize(
    ("entry_point", "why"),
    [
        ("Odd = odd:Missing", "cannot be imported"),
        ("Odd = nowhere:Config", "cannot be imported"),
        ("Odd = no place", "is no place of a Python object; write module:name"),
        ("Odd = ending:Config", r"cannot be imported (SystemExit: 3)"),
        ("Odd = odd:NUMBER", "neither a subclass of DecoderConfig nor a mapping"),
        ("Odd = odd:WRONG_ROWS", "neither a subclass of DecoderConfig nor a mapping"),
    ],
)
def test_a_package_that_is_not_right_is_named(entry_point: str, why: str, site: Path, tmp_path: Path) -> None:
    files = {"odd": 'NUMBER = 4\nWRONG_ROWS = {"OddForCausalLM": 4}\n', "ending": "raise SystemExit(3)\n"}
    install(site, "odd-models", entry_point, **files)
    FAMILIES["llama"](architectures=["OddForCausalLM"]).save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_path(str(tmp_path))
    assert f"odd-models registers Odd = '{entry_point.partition(' = ')[2]}'" in str(caught.value)
    assert why in str(caught.value)
    # Another architecture is none of its business.
    FAMILIES["llama"](architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    ModelConfig.from_path(str(tmp_path))


def test_two_packages_with_one_architecture(site: Path, tmp_path: Path) -> None:
    value = "Odd = mysglang.srt.configs.families.llama:LlamaConfig"
    install(site, "odd-models", value)
    install(site, "other-models", value)
    FAMILIES["llama"](architectures=["OddForCausalLM"]).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"several packages: .*(odd-models.*other-models|other-models.*odd-models)"):
        ModelConfig.from_path(str(tmp_path))


def test_one_package_with_one_architecture_twice(site: Path, tmp_path: Path) -> None:
    value = "mysglang.srt.configs.families.llama:LlamaConfig"
    install(site, "odd-models", f"Odd = {value}\nOddFor = twice:ROWS", twice=rows_of("causal_lm:CausalLM", LLAMA))
    FAMILIES["llama"](architectures=["OddForCausalLM"]).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="OddForCausalLM is brought 2 times by the package odd-models"):
        ModelConfig.from_path(str(tmp_path))


LLAMA = "config=LlamaConfig"


def rows_of(model: object, *facts: str) -> str:
    """A file with a table of one row."""
    lines = [
        "from mysglang.srt.configs.architectures import Architecture",
        "from mysglang.srt.configs.families.llama import LlamaConfig",
        f'ROWS = {{"OddForCausalLM": Architecture({", ".join([repr(model), *facts])})}}',
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("model", "facts", "says"),
    [
        (None, [LLAMA], "model is None, and must be a text file:Class"),
        ("classes", [LLAMA], "model is 'classes', and must be"),
        ("causal_lm:CausalLM", ["config=4"], "config is 4, and must be a subclass of DecoderConfig"),
        ("causal_lm:CausalLM", ["config=dict"], "config is <class 'dict'>, and must be"),
        ("causal_lm:CausalLM", [LLAMA, "task='fly'"], "task is 'fly', and must be one of generate, embed, classify"),
        ("causal_lm:CausalLM", [LLAMA, "package=''"], "package is '', and must be the name"),
    ],
)
def test_a_row_that_is_not_right(
    model: object, facts: list[str], says: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "wrong_row", raising=False)
    install(site, "odd-models", "Odd = wrong_row:ROWS", wrong_row=rows_of(model, *facts))
    FAMILIES["llama"](architectures=["OddForCausalLM"]).save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError, match=f"odd-models registers .* the row of OddForCausalLM there is not right: {says}"
    ):
        ModelConfig.from_path(str(tmp_path))


def test_vectors_by_an_architecture_that_is_not_there(site: Path, tmp_path: Path) -> None:
    rows = rows_of("causal_lm:CausalLM", LLAMA, "embedding='OddModel'")
    install(site, "odd-models", "Odd = headless:ROWS", headless=rows)
    FAMILIES["llama"](architectures=["OddForCausalLM"]).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="OddModel makes its vectors, and there is no OddModel"):
        ModelConfig.from_path(str(tmp_path), is_embedding=True)


def test_a_class_whose_file_raises(site: Path, tmp_path: Path) -> None:
    rows = rows_of("raising:Model", LLAMA, "package='raising_classes'")
    install(site, "odd-models", "Odd = raising_row:ROWS", raising_row=rows, raising_classes__raising="1 / 0\n")
    FAMILIES["llama"](architectures=["OddForCausalLM"]).save_pretrained(tmp_path)
    served = ModelConfig.from_path(str(tmp_path)).served_as
    with pytest.raises(ConfigError, match=r"raising:Model of raising_classes cannot be imported \(ZeroDivisionError"):
        model_class(served, TokenModel)


def test_a_class_that_is_not_there_or_of_another_kind(site: Path, tmp_path: Path) -> None:
    lines = [
        "from mysglang.srt.configs.architectures import Architecture",
        "from mysglang.srt.configs.families.llama import LlamaConfig",
        "ROWS = {",
        '    "OddForCausalLM": Architecture("classes:Missing", LlamaConfig, package="odd_classes"),',
        '    "OddLMHeadModel": Architecture("classes:Other", LlamaConfig, package="odd_classes"),',
        "}",
    ]
    other = "class Other: ...\n"
    install(site, "odd-models", "Odd = odd_rows:ROWS", odd_rows="\n".join(lines), odd_classes__classes=other)
    for name, why in (("OddForCausalLM", "has no classes:Missing"), ("OddLMHeadModel", "is no TokenModel")):
        FAMILIES["llama"](architectures=[name]).save_pretrained(tmp_path)
        with pytest.raises(ConfigError, match=why):
            model_class(ModelConfig.from_path(str(tmp_path)).served_as, TokenModel)
