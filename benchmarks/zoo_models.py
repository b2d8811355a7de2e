"""Real architectures of timm, transformers, peft, diffusers and MONAI, small enough for a processor, for `zoo.py`.

Each is built from a configuration of its library, with weights drawn at random, and comes with a batch and a loss as
users of its library write them. Dropout is off, so that steps can be compared.
"""

import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SAMPLES, WORDS, VOCABULARY = 8, 64, 1000
CLASSES = 10


@dataclass(frozen=True)
class Entry:
    """A model to be built, its loss, and one batch."""

    library: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    loss: Callable[..., Tensor]


def entries() -> dict[str, Entry]:
    """Return all of them by name; libraries that are not installed are an ImportError."""
    return {**of_timm(), **of_transformers(), **of_peft(), **of_diffusers(), **of_monai()}


def without_dropout(model: nn.Module) -> nn.Module:
    """Switch dropout off wherever a module keeps its share, also where a function is given it."""
    for module in model.modules():
        for name, value in vars(module).items():
            is_share = name == "p" or "drop" in name or name == "layerdrop"
            if is_share and isinstance(value, float):
                setattr(module, name, 0.0)
    return model


def pictures(side: int, samples: int = SAMPLES, channels: int = 3, dimensions: int = 2) -> Tensor:
    """Noise [samples, channels, side, ...]."""
    return torch.randn(samples, channels, *[side] * dimensions, generator=torch.Generator().manual_seed(1))


def numbers(below: int, *shape: int) -> Tensor:
    """Whole numbers [...]."""
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(2))


# timm: classifiers.


def of_timm() -> dict[str, Entry]:
    """Return classifiers of pictures."""
    with _stand_in_for_torchvision():
        timm = import_module("timm")

    def entry(name: str, side: int, **options: Any) -> Entry:
        return Entry(
            "timm",
            lambda: timm.create_model(name, num_classes=CLASSES, drop_path_rate=0.0, **options),
            lambda: (pictures(side), numbers(CLASSES, SAMPLES)),
            lambda model, x, y: F.cross_entropy(model(x), y),
        )

    small = {"embed_dim": 192, "depth": 6, "num_heads": 3}
    return {
        "resnet50": entry("resnet50", 64),
        "convnext_atto": entry("convnext_atto", 64),
        "efficientnet_b0": entry("efficientnet_b0", 64),
        "mobilenetv3_small_100": entry("mobilenetv3_small_100", 64),
        "densenet121": Entry(
            "timm",
            lambda: timm.create_model("densenet121", num_classes=CLASSES),
            lambda: (pictures(64), numbers(CLASSES, SAMPLES)),
            lambda model, x, y: F.cross_entropy(model(x), y),
        ),
        "regnety_002": entry("regnety_002", 64),
        "vit_small_patch16": entry("vit_small_patch16_224", 96, img_size=96, **small),
        "beit_base_patch16": entry("beit_base_patch16_224", 96, img_size=96, **small),
        "swin_tiny_patch4": entry("swin_tiny_patch4_window7_224", 64, img_size=64, window_size=4, embed_dim=48),
        "mixer_s32": entry("mixer_s32_224", 96, img_size=96),
        "poolformer_s12": entry("poolformer_s12", 64),
    }


class _Anything(type):
    """A class that has whatever attribute it is asked for."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def _anything(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything(name, (), {})


class _stand_in_for_torchvision:  # used as a function
    """Inside, `import torchvision` gives empty classes: timm imports it for data alone, and it is not built here."""

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """Say that it is here."""
        if name.split(".", maxsplit=1)[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Make a module."""
        module = ModuleType(spec.name)
        vars(module)["__getattr__"] = _anything
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing."""


# transformers: text, pictures and sound.


def of_transformers() -> dict[str, Entry]:
    """Return models whose batches are what a collator gives: dicts with a mask, of which one sample is padded."""
    hf = import_module("transformers")

    words = {"input_ids": numbers(VOCABULARY - 5, SAMPLES, WORDS) + 5, "attention_mask": _padded()}
    sentences = {**words, "labels": numbers(2, SAMPLES)}
    texts = {**words, "labels": words["input_ids"].clone()}
    images = {"pixel_values": pictures(64), "labels": numbers(2, SAMPLES)}
    sounds = {"input_values": torch.randn(SAMPLES, 4000, generator=torch.Generator().manual_seed(3))}
    small = {
        **{"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4},
        **{"intermediate_size": 512, "max_position_embeddings": 2 * WORDS},
    }
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    layers = {"encoder_layers": 3, "decoder_layers": 3, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512}
    gpt = {"vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 4, "n_head": 4}
    of_pictures = {key: small[key] for key in [*small][1:5]} | {"image_size": 64, "patch_size": 8}
    no_cache = {"use_cache": False}
    tower = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}

    def entry(model: str, config: Any, batch: Mapping[str, Tensor]) -> Entry:
        return Entry("transformers", lambda: getattr(hf, model)(config), lambda: dict(batch), _own_loss)

    clip = hf.CLIPConfig(
        text_config={**tower, "vocab_size": VOCABULARY, "eos_token_id": VOCABULARY - 1},
        vision_config={**tower, "image_size": 64, "patch_size": 16},
    )
    of_sound = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
    return {
        "bert": entry("BertForSequenceClassification", hf.BertConfig(**small), sentences),
        "roberta": entry("RobertaForSequenceClassification", hf.RobertaConfig(**small), sentences),
        "distilbert": entry(
            "DistilBertForSequenceClassification",
            hf.DistilBertConfig(vocab_size=VOCABULARY, dim=128, n_layers=4, n_heads=4, hidden_dim=512),
            sentences,
        ),
        "gpt2": entry("GPT2LMHeadModel", hf.GPT2Config(**gpt, **no_cache), texts),
        "llama": entry("LlamaForCausalLM", hf.LlamaConfig(**small, **no_cache), texts),
        "qwen3": entry(
            "Qwen3ForCausalLM", hf.Qwen3Config(**small, head_dim=32, num_key_value_heads=4, **no_cache), texts
        ),
        "mixtral": entry(
            "MixtralForCausalLM",
            hf.MixtralConfig(**small, num_key_value_heads=2, num_local_experts=4, **no_cache),
            texts,
        ),
        "mamba": entry(
            "MambaForCausalLM",
            hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=3, **no_cache),
            texts,
        ),
        "t5": entry(
            "T5ForConditionalGeneration",
            hf.T5Config(
                vocab_size=VOCABULARY,
                d_model=128,
                d_kv=32,
                d_ff=512,
                num_layers=3,
                num_heads=4,
                decoder_start_token_id=0,
                **no_cache,
            ),
            texts,
        ),
        "bart": entry(
            "BartForConditionalGeneration",
            hf.BartConfig(
                vocab_size=VOCABULARY, d_model=128, max_position_embeddings=2 * WORDS, **heads, **layers, **no_cache
            ),
            texts,
        ),
        "whisper": entry(
            "WhisperForConditionalGeneration",
            hf.WhisperConfig(
                vocab_size=VOCABULARY,
                d_model=128,
                max_source_positions=100,
                num_mel_bins=20,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=1,
                **heads,
                **layers,
                **no_cache,
            ),
            {"input_features": pictures(200, dimensions=1, channels=20), "labels": texts["labels"]},
        ),
        "wav2vec2": entry(
            "Wav2Vec2ForSequenceClassification",
            hf.Wav2Vec2Config(
                **of_sound,
                conv_dim=[64] * 7,
                apply_spec_augment=False,
                layerdrop=0.0,
                num_conv_pos_embeddings=16,
                classifier_proj_size=64,
            ),
            {**sounds, "labels": numbers(2, SAMPLES)},
        ),
        "vit": entry("ViTForImageClassification", hf.ViTConfig(**of_pictures), images),
        "segformer": entry(
            "SegformerForSemanticSegmentation",
            hf.SegformerConfig(num_labels=4, hidden_sizes=[16, 32, 64, 96], decoder_hidden_size=64),
            {"pixel_values": images["pixel_values"], "labels": numbers(4, SAMPLES, 64, 64)},
        ),
        "clip": Entry(
            "transformers",
            lambda: hf.CLIPModel(clip),
            lambda: {**words, "pixel_values": images["pixel_values"]},
            lambda model, batch: model(**batch, return_loss=True).loss,
        ),
    }


def _own_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def _padded() -> Tensor:
    mask = torch.ones(SAMPLES, WORDS, dtype=torch.long)
    mask[1, -9:] = 0
    return mask


# peft: thin layers that train beside a frozen model.


def of_peft() -> dict[str, Entry]:
    """Return a Llama in bf16 that LoRA's layers in fp32 are trained beside."""
    hf, peft = import_module("transformers"), import_module("peft")
    words = numbers(VOCABULARY, SAMPLES, WORDS)
    texts = {"input_ids": words, "attention_mask": _padded(), "labels": words.clone()}
    config = hf.LlamaConfig(
        **{"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4},
        **{"intermediate_size": 512, "num_key_value_heads": 2, "use_cache": False},
    )
    thin = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")

    def build() -> nn.Module:
        model: nn.Module = peft.get_peft_model(hf.LlamaForCausalLM(config).bfloat16(), thin)
        return model

    return {"llama_lora": Entry("peft", build, lambda: dict(texts), _own_loss)}


# diffusers: what predicts noise, and an autoencoder.


def of_diffusers() -> dict[str, Entry]:
    """Return networks that predict noise from pictures, times and words, and an autoencoder."""
    diffusers = import_module("diffusers")

    def noise(side: int, channels: int) -> Callable[[], Any]:
        return lambda: (pictures(side, channels=channels), numbers(1000, SAMPLES))

    def predicts(model: nn.Module, x: Tensor, time: Tensor) -> Tensor:
        return F.mse_loss(model(x, time).sample, x)

    def predicts_by_words(model: nn.Module, x: Tensor, time: Tensor, words: Tensor) -> Tensor:
        return F.mse_loss(model(x, time, encoder_hidden_states=words).sample, x)

    def predicts_by_class(model: nn.Module, x: Tensor, time: Tensor) -> Tensor:
        return F.mse_loss(model(x, timestep=time, class_labels=time % CLASSES).sample, x)

    widths = {"block_out_channels": (32, 64), "norm_num_groups": 8}
    return {
        "unet2d": Entry(
            "diffusers",
            lambda: diffusers.UNet2DModel(
                sample_size=32,
                **widths,
                down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            ),
            noise(32, 3),
            predicts,
        ),
        "unet2d_condition": Entry(
            "diffusers",
            lambda: diffusers.UNet2DConditionModel(
                sample_size=32,
                **widths,
                cross_attention_dim=64,
                attention_head_dim=8,
                down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            ),
            lambda: (*noise(32, 4)(), pictures(64, channels=77, dimensions=1)),
            predicts_by_words,
        ),
        "dit": Entry(
            "diffusers",
            lambda: diffusers.DiTTransformer2DModel(
                num_attention_heads=4,
                attention_head_dim=32,
                in_channels=4,
                num_layers=6,
                sample_size=16,
                num_embeds_ada_norm=1000,
            ),
            noise(16, 4),
            predicts_by_class,
        ),
        "autoencoder_kl": Entry(
            "diffusers",
            lambda: diffusers.AutoencoderKL(
                **widths,
                down_block_types=("DownEncoderBlock2D",) * 2,
                up_block_types=("UpDecoderBlock2D",) * 2,
            ),
            lambda: pictures(32),
            lambda model, x: F.mse_loss(model(x).sample, x),
        ),
    }


# MONAI: segmentation of volumes.


def of_monai() -> dict[str, Entry]:
    """Return networks that segment volumes, with MONAI's Dice of each sample, and a classifier."""
    nets = import_module("monai.networks.nets")
    dice = import_module("monai.losses").DiceCELoss(to_onehot_y=True, softmax=True)

    def entry(build: Callable[[], nn.Module], side: int, samples: int = 4) -> Entry:
        return Entry(
            "MONAI",
            build,
            lambda: (pictures(side, samples, 1, 3), numbers(3, samples, 1, side, side, side)),
            lambda model, x, y: dice(model(x), y),
        )

    volumes = {"spatial_dims": 3, "in_channels": 1, "out_channels": 3}
    return {
        "monai_unet": entry(
            lambda: nets.UNet(**volumes, channels=(8, 16, 32), strides=(2, 2), num_res_units=2, norm="instance"), 24
        ),
        "segresnet": entry(lambda: nets.SegResNet(**volumes, init_filters=8), 24),
        "unetr": entry(
            lambda: nets.UNETR(1, 3, (32, 32, 32), feature_size=4, hidden_size=48, mlp_dim=96, num_heads=4), 32, 2
        ),
        "swin_unetr": entry(lambda: nets.SwinUNETR(in_channels=1, out_channels=3, feature_size=12), 64, 2),
        "dynunet": entry(
            lambda: nets.DynUNet(
                **volumes, kernel_size=(3, 3, 3), strides=(1, 2, 2), upsample_kernel_size=(2, 2), filters=(8, 16, 32)
            ),
            24,
        ),
    }
