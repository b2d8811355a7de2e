"""Small models with the traits of those that people bring: predicted peaks are those of real steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import frugan
from frugan.stepmemory.dataless import Dataless, WithoutData, running_without_data
from frugan.stepmemory.tracker import Tracker, tensors_of
from frugan.training.own_loop.module_step import ModulePlan

BATCH, WORDS, LENGTH, WIDTH = 8, 60, 16, 32


class Block(nn.Module):
    """Attention and layers between norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.layers = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Any:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.layers(x)


class Tied(nn.Module):
    """A language model whose head is its embedding, as GPT-2's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


class Windows(nn.Module):
    """Attention within shifted windows, with a learned bias by relative place, as Swin's."""

    index: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 2, 2)
        self.projections = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(49, 4))
        places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        relative = places[:, :, None] - places[:, None, :] + 3
        self.register_buffer("index", 7 * relative[0] + relative[1])

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        for shift, projections, out in zip((0, 2), self.projections, self.outs, strict=True):
            y = torch.roll(x, (-shift, -shift), (1, 2)).unflatten(1, (-1, 4)).unflatten(3, (-1, 4))
            y = y.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(0, 2)
            query, key, value = projections(y).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            scores = query @ key.transpose(-2, -1) + self.bias[self.index].permute(2, 0, 1)
            y = out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
            x = x + y.unflatten(0, (len(x), -1)).mean((1, 2))[:, None, None]
        return x.square().mean()


class Noisy(nn.Module):
    """An autoencoder that draws its code, with attention over places in the middle, as diffusers' has."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.norm, self.projections = nn.GroupNorm(4, 16), nn.Linear(16, 48)
        self.moments = nn.Conv2d(16, 8, 1)
        self.decoder = nn.Sequential(
            nn.Conv2d(4, 16, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=2), nn.Conv2d(16, 3, 1)
        )

    def forward(self, x: Tensor) -> Any:
        y = self.encoder(x)
        places = self.norm(y).flatten(2).transpose(1, 2)
        query, key, value = self.projections(places)[:, None].chunk(3, -1)
        z = F.scaled_dot_product_attention(query, key, value)[:, 0]
        y = y + z.transpose(1, 2).unflatten(2, y.shape[2:])
        mean, log_variance = self.moments(y).chunk(2, 1)
        code = mean + torch.exp(0.5 * log_variance.clamp(-30, 20)) * torch.randn_like(mean)
        return F.mse_loss(self.decoder(code), x) + 1e-3 * (mean.square() + log_variance.exp() - log_variance).mean()


class Experts(nn.Module):
    """Several networks of which each word takes the two best, all of them run and weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.router = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, WIDTH)) for _ in range(4)
        )

    def forward(self, words: Tensor) -> Any:
        x = self.embedding(words)
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        shares = torch.zeros(*x.shape[:2], 4, dtype=weights.dtype).scatter(-1, chosen, weights)
        y = torch.stack([expert(x) for expert in self.experts], -1)
        return ((y * shares[:, :, None]).sum(-1) - x).square().mean()


class Rotated(nn.Module):
    """Attention with two queries to a key, turned by angles in fp32, and a mask of truth values, as Llama has."""

    angles: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.projections = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)
        self.register_buffer("angles", torch.arange(LENGTH)[:, None] / 10 ** (torch.arange(8) % 4))

    def forward(self, words: Tensor) -> Tensor:
        heads = self.projections(self.embedding(words)).unflatten(-1, (8, 8)).transpose(1, 2)
        query, key, value = heads.split((4, 2, 2), 1)
        query, key = (x * self.angles.cos() + x.roll(4, -1) * self.angles.sin() for x in (query, key))
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=words.device).tril()
        x = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.out(x).flatten(0, 1), words.flatten())


class Sound(nn.Module):
    """Convolutions along time, one with its weights normed, as wav2vec2 has."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.ModuleList(
            nn.Sequential(nn.Conv1d(1 if i == 0 else 16, 16, 5, 2), nn.GroupNorm(4, 16), nn.GELU()) for i in range(3)
        )
        self.places = weight_norm(nn.Conv1d(16, 16, 8, padding=4, groups=4), dim=2)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Any:
        for layer in self.features:
            x = layer(x)
        x = x + F.gelu(self.places(x)[..., :-1])
        return self.head(x.mean(-1)).square().mean()


class Cached(nn.Module):
    """Blocks that read keys and values of all blocks before, which a list keeps that each forward makes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, words: Tensor) -> Tensor:
        kept = [self.embedding(words)]
        for block in self.blocks:
            kept.append(block(sum(kept[1:], kept[0])))
        return torch.stack(kept).square().mean()


class Adapted(nn.Module):
    """A frozen model with two thin layers beside each of its own that train, as LoRA has."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)).requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(WIDTH, 2, bias=False) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(2, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for frozen, down, up in zip(self.frozen, self.down, self.up, strict=True):
            x = torch.tanh(frozen(x) + up(down(x)))
        return x.square().mean()


def words() -> Tensor:
    return torch.randint(WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


def noise(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(BATCH, *shape, generator=torch.Generator().manual_seed(0))


TRAITS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "tied weights": (Tied, words),
    "windows and a learned bias": (Windows, noise(3, 16, 16)),
    "noise and attention over places": (Noisy, noise(3, 16, 16)),
    "experts": (Experts, words),
    "queries turned in fp32": (Rotated, words),
    "normed weights along time": (Sound, noise(1, 200)),
    "a list that grows": (Cached, words),
    "adapters": (Adapted, noise(WIDTH)),
}


def loss(model: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = model(x)
    return result


@pytest.mark.parametrize("way", ["whole", "recomputed", "split", "bf16", "autocast"])
@pytest.mark.parametrize("trait", TRAITS)
def test_the_peak_is_that_of_a_real_step(trait: str, way: str) -> None:
    torch.manual_seed(0)
    build, batch = TRAITS[trait]
    model, x = build(), batch()
    optimizer: Any = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    if (trait, way) == ("queries turned in fp32", "bf16"):
        message = "Rotated does not run in bf16: a product of float32 and bfloat16 tensors"
        with pytest.raises(frugan.BadInput, match=message):
            frugan.plan_module(model, loss, x, optimizer, precision="bf16")
        return
    precision: Any = way if way in ("bf16", "autocast") else "fp32"
    report = frugan.plan_module(model, loss, x, optimizer, precision=precision)
    assert report.precision.name == ("fp32" if precision == "fp32" else "bf16")
    micro_batch = 3 if way == "split" else BATCH
    report = report.of(micro_batch, report.search.blocks if way == "recomputed" else ())
    plan = ModulePlan(BATCH, micro_batch, report.precision, report.recompute)
    step = frugan.ModuleStep(model, loss, optimizer, plan)
    step(x)
    held: Any = {
        "parameters": [*model.parameters(), *model.buffers()],
        "optimizer": tensors_of(list(optimizer.state.values())),
        "batch": [x],
    }
    with Tracker(held) as tracker:
        step(x)
    assert report.peak_bytes == pytest.approx(tracker.peak_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("as_card", "dtype", "fused"),
    [(False, torch.float32, True), (True, torch.float32, False), (True, torch.bfloat16, True)],
)
def test_attention_with_shared_keys_is_fused_where_a_kernel_is(as_card: bool, dtype: torch.dtype, fused: bool) -> None:
    """Cards have one in half precision alone."""
    seen: list[str] = []

    class Noting(Dataless):
        def run(self, func: Any, args: Any, kwargs: Any) -> Any:
            seen.append(str(func))
            return super().run(func, args, kwargs)

    with running_without_data(as_card=as_card), WithoutData(Noting()):
        query, key = (torch.empty(2, heads, 16, 8, dtype=dtype, device="meta") for heads in (4, 2))
        result = F.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    assert result.shape == query.shape
    assert any("flash" in name for name in seen) is fused
