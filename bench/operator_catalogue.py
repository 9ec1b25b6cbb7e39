"""PyTorch's operators, as operators.py runs them: how their inputs are made, and what is done with them.

An entry is a function that takes a Maker and returns its inputs, and one that takes these and returns outputs. Tensors
are of 1 MiB and more where it matters: smaller ones never leave the device.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

OPERATORS = {}


class Maker:
    """Makes inputs, the same for a seed."""

    def __init__(self, device, seed):
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape, dtype=torch.float32):
        return torch.randn(*shape, device=self.device, generator=self.generator, dtype=torch.float32).to(dtype)

    def uniform(self, *shape):
        return torch.rand(*shape, device=self.device, generator=self.generator)

    def integers(self, below, *shape, dtype=torch.int64):
        return torch.randint(0, below, shape, device=self.device, generator=self.generator, dtype=torch.int64).to(dtype)

    def positive(self, batch, n):
        """Positive definite matrices."""
        a = self.normal(batch, n, n)
        return a @ a.mT / n + torch.eye(n, device=self.device)

    def module(self, m):
        torch.manual_seed(int(self.integers(1 << 30, 1).item()))
        return m.to(self.device)


def entry(name, make, run, grad=False):
    """grad: floating-point inputs and modules' parameters get gradients, which are outputs as well."""
    if name in OPERATORS:
        raise ValueError(f"{name} is there twice")
    OPERATORS[name] = (make, run, grad)


def one(name, run, *shape, grad=False, dtype=torch.float32):
    entry(name, lambda m: (m.normal(*shape, dtype=dtype),), run, grad)


# ---- matrix products ----

for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64):
    entry(f"matmul {dtype}", lambda m, d=dtype: (m.normal(1536, 2048).to(d), m.normal(2048, 1024).to(d)), torch.matmul, dtype != torch.complex64)
entry("bmm", lambda m: (m.normal(16, 512, 512), m.normal(16, 512, 512)), torch.bmm, True)
entry("baddbmm bf16", lambda m: tuple(m.normal(16, 512, 512, dtype=torch.bfloat16) for _ in range(3)), torch.baddbmm, True)
entry("linear and gelu", lambda m: (m.module(nn.Linear(2048, 2048)), m.normal(2048, 2048)), lambda f, x: F.gelu(f(x), approximate="tanh"), True)
entry("addmm with bias", lambda m: (m.normal(2048), m.normal(2048, 1024), m.normal(1024, 2048)), torch.addmm, True)
entry("addr", lambda m: (m.normal(2048, 2048), m.normal(2048), m.normal(2048)), torch.addr)
entry("mv", lambda m: (m.normal(4096, 4096), m.normal(4096)), torch.mv)
entry("dot", lambda m: (m.normal(1 << 22), m.normal(1 << 22)), torch.dot)
entry("einsum", lambda m: (m.normal(8, 256, 16, 64), m.normal(8, 256, 16, 64)), lambda a, b: torch.einsum("blhd,bmhd->bhlm", a, b), True)
entry("int8 matmul", lambda m: (m.integers(100, 2048, 2048, dtype=torch.int8), m.integers(100, 2048, 2048, dtype=torch.int8)), torch._int_mm)


def scaled(a, b, s):
    return torch._scaled_mm(a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t(), scale_a=s, scale_b=s, out_dtype=torch.bfloat16)


entry("fp8 matmul", lambda m: (m.normal(2048, 2048), m.normal(2048, 2048), torch.ones((), device=m.device)), scaled)


def grouped(x, w, ends):
    return torch._grouped_mm(x, w, offs=ends)


entry("grouped matmul", lambda m: (m.normal(2048, 1024, dtype=torch.bfloat16), m.normal(8, 1024, 1024, dtype=torch.bfloat16), torch.arange(1, 9, device=m.device, dtype=torch.int32) * 256), grouped, True)
entry("chain_matmul", lambda m: (m.normal(1024, 1024), m.normal(1024, 1024), m.normal(1024, 1024)), lambda *x: torch.linalg.multi_dot(x))
entry("matrix_power", lambda m: (m.normal(1024, 1024) / 40,), lambda a: torch.linalg.matrix_power(a, 5))
entry("tensordot", lambda m: (m.normal(64, 128, 64), m.normal(128, 64, 128)), lambda a, b: torch.tensordot(a, b, dims=([1, 2], [0, 1])))
entry("kron", lambda m: (m.normal(64, 64), m.normal(32, 32)), torch.kron)

# ---- attention ----

for backend in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):

    def attend(q, k, v, backend=backend):
        with nn.attention.sdpa_kernel(getattr(nn.attention.SDPBackend, backend)):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    entry(f"attention {backend.lower()}", lambda m: tuple(m.normal(4, 8, 1024, 64, dtype=torch.bfloat16) for _ in range(3)), attend, True)
entry("multihead attention", lambda m: (m.module(nn.MultiheadAttention(512, 8, batch_first=True)), m.normal(8, 512, 512)), lambda f, x: f(x, x, x)[0], True)
entry("encoder layer", lambda m: (m.module(nn.TransformerEncoderLayer(512, 8, dropout=0.1, batch_first=True)), m.normal(8, 512, 512)), lambda f, x: f(x), True)

# ---- convolutions and recurrent networks ----

entry("conv1d", lambda m: (m.module(nn.Conv1d(64, 128, 5, padding=2)), m.normal(16, 64, 4096)), lambda f, x: f(x), True)
entry("conv2d", lambda m: (m.module(nn.Conv2d(64, 128, 3, padding=1)), m.normal(16, 64, 64, 64)), lambda f, x: f(x), True)
entry("conv2d channels last bf16", lambda m: (m.module(nn.Conv2d(64, 128, 3, padding=1)).to(torch.bfloat16, memory_format=torch.channels_last), m.normal(16, 64, 64, 64, dtype=torch.bfloat16).to(memory_format=torch.channels_last)), lambda f, x: f(x), True)  # fmt: skip
entry("depthwise conv2d", lambda m: (m.module(nn.Conv2d(128, 128, 3, padding=1, groups=128)), m.normal(16, 128, 64, 64)), lambda f, x: f(x), True)
entry("conv3d", lambda m: (m.module(nn.Conv3d(16, 32, 3, padding=1)), m.normal(4, 16, 16, 48, 48)), lambda f, x: f(x), True)
entry("conv_transpose2d", lambda m: (m.module(nn.ConvTranspose2d(64, 64, 2, stride=2)), m.normal(16, 64, 48, 48)), lambda f, x: f(x), True)
for kind in ("LSTM", "GRU", "RNN"):
    entry(f"{kind.lower()}", lambda m, k=kind: (m.module(getattr(nn, k)(512, 512, num_layers=2, batch_first=True)), m.normal(32, 128, 512)), lambda f, x: f(x)[0], True)


def packed(f, x):
    lengths = [128 - 3 * i for i in range(32)]
    y, _ = f(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))
    return nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0]


entry("lstm, packed, both ways", lambda m: (m.module(nn.LSTM(256, 256, bidirectional=True, batch_first=True)), m.normal(32, 128, 256)), packed, True)
one("unfold and fold", lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[-2:], 3, padding=1), 8, 16, 96, 96, grad=True)

# ---- normalisation, activation, loss ----

entry("layer_norm", lambda m: (m.module(nn.LayerNorm(1024)), m.normal(4096, 1024)), lambda f, x: f(x), True)
entry("rms_norm", lambda m: (m.module(nn.RMSNorm(1024)), m.normal(4096, 1024)), lambda f, x: f(x), True)
entry("batch_norm", lambda m: (m.module(nn.BatchNorm2d(64)), m.normal(16, 64, 64, 64)), lambda f, x: (f(x), f.running_mean, f.running_var)[0], True)
entry("group_norm", lambda m: (m.module(nn.GroupNorm(8, 64)), m.normal(16, 64, 64, 64)), lambda f, x: f(x), True)
entry("instance_norm", lambda m: (m.normal(16, 64, 64, 64),), F.instance_norm, True)
one("softmax", lambda x: x.softmax(-1), 4096, 1024, grad=True)
one("softmax over columns", lambda x: x.softmax(0), 1024, 4096, grad=True)
one("dropout", lambda x: F.dropout(x, 0.3), 2048, 2048, grad=True)
for name in ("gelu", "silu", "mish", "elu", "softplus", "hardswish", "logsigmoid", "tanh", "glu", "leaky_relu"):
    one(name, getattr(F, name) if name != "tanh" else torch.tanh, 2048, 2048, grad=True)
entry("prelu", lambda m: (m.normal(64, 64, 32, 32), m.normal(64)), F.prelu, True)
entry("cross_entropy", lambda m: (m.normal(2048, 8192), m.integers(8192, 2048)), F.cross_entropy, True)
entry("nll_loss2d", lambda m: (m.normal(8, 16, 128, 128).log_softmax(1), m.integers(16, 8, 128, 128)), F.nll_loss, True)
entry("kl_div", lambda m: (m.normal(2048, 1024).log_softmax(-1), m.normal(2048, 1024).softmax(-1)), lambda a, b: F.kl_div(a, b, reduction="batchmean"), True)
entry("binary cross entropy", lambda m: (m.normal(2048, 1024), m.uniform(2048, 1024)), F.binary_cross_entropy_with_logits, True)
entry("ctc_loss", lambda m: (m.normal(256, 32, 128).log_softmax(-1), m.integers(126, 32, 60) + 1), lambda x, y: F.ctc_loss(x, y, torch.full((32,), 256, dtype=torch.int64), torch.full((32,), 60, dtype=torch.int64)), True)
entry("cosine_similarity", lambda m: (m.normal(4096, 1024), m.normal(4096, 1024)), F.cosine_similarity, True)
entry("cdist", lambda m: (m.normal(1024, 128), m.normal(1024, 128)), torch.cdist)
one("pdist", F.pdist, 1024, 512)
entry("triplet loss", lambda m: tuple(m.normal(4096, 256) for _ in range(3)), F.triplet_margin_loss, True)

# ---- indexing ----

entry("embedding", lambda m: (m.module(nn.Embedding(30000, 256)), m.integers(30000, 64, 512)), lambda f, i: f(i), True)
entry("embedding_bag", lambda m: (m.module(nn.EmbeddingBag(30000, 256)), m.integers(30000, 2048, 32)), lambda f, i: f(i), True)
entry("sparse embedding", lambda m: (m.module(nn.Embedding(30000, 128, sparse=True)), m.integers(30000, 64, 128)), lambda f, i: f(i), True)
entry("index_select", lambda m: (m.normal(8192, 512), m.integers(8192, 4096)), lambda x, i: x.index_select(0, i), True)
entry("gather", lambda m: (m.normal(4096, 1024), m.integers(1024, 4096, 512)), lambda x, i: x.gather(1, i), True)
entry("scatter_add", lambda m: (m.normal(4096, 1024), m.integers(1024, 4096, 512), m.normal(4096, 512)), lambda x, i, v: x.scatter_add(1, i, v), True)
entry("scatter_reduce", lambda m: (m.normal(4096, 1024), m.integers(1024, 4096, 512), m.normal(4096, 512)), lambda x, i, v: x.scatter_reduce(1, i, v, "amax"))
entry("index_put", lambda m: (m.normal(8192, 256), m.integers(8192, 4096), m.normal(4096, 256)), lambda x, i, v: x.clone().index_put((i,), v, accumulate=True))
entry("index_add", lambda m: (m.normal(8192, 256), m.integers(8192, 4096), m.normal(4096, 256)), lambda x, i, v: x.index_add(0, i, v))
entry("advanced indexing", lambda m: (m.normal(512, 64, 64), m.integers(512, 256), m.integers(64, 256)), lambda x, i, j: x[i, j], True)
entry("masked_select", lambda m: (m.normal(2048, 2048),), lambda x: x.masked_select(x > 0.5))
one("masked_fill", lambda x: x.masked_fill(x > 0, 1.5), 2048, 2048, grad=True)
one("nonzero", lambda x: (x > 2).nonzero(), 2048, 2048)
one("where", lambda x: torch.where(x > 0, x, x * 2), 2048, 2048, grad=True)
one("take_along_dim", lambda x: x.take_along_dim(x.argsort(1), 1), 2048, 1024)
entry("repeat_interleave", lambda m: (m.normal(2048, 256), m.integers(5, 2048)), lambda x, n: x.repeat_interleave(n, 0))
entry("one_hot", lambda m: (m.integers(512, 8192),), F.one_hot)
entry("segment_reduce", lambda m: (m.normal(4096, 256),), lambda x: torch.segment_reduce(x, "sum", lengths=torch.full((64,), 64, device=x.device), axis=0))

# ---- sorting, searching, scanning, reducing ----

one("sort", lambda x: x.sort(-1), 512, 8192, grad=False)
one("sort of one long row", lambda x: x.sort(), 1 << 22)
entry("stable sort of keys", lambda m: (m.integers(1000, 1 << 22),), lambda x: x.sort(stable=True))
one("topk", lambda x: x.topk(64), 2048, 2048)
one("kthvalue", lambda x: x.kthvalue(100), 1024, 4096)
one("median", lambda x: x.median(-1), 1024, 4096)
one("quantile", lambda x: x.quantile(torch.tensor([0.1, 0.9], device=x.device), dim=1), 1024, 2048)
entry("mode", lambda m: (m.integers(20, 1024, 1024),), lambda x: x.mode(-1)[0])
entry("unique", lambda m: (m.integers(100000, 1 << 21),), lambda x: torch.unique(x, return_inverse=True, return_counts=True))
entry("unique_consecutive", lambda m: (m.integers(3, 1 << 21),), lambda x: torch.unique_consecutive(x, return_counts=True))
entry("searchsorted", lambda m: (m.normal(1 << 20).sort()[0], m.normal(1 << 21)), torch.searchsorted)
entry("bincount", lambda m: (m.integers(5000, 1 << 22),), lambda x: torch.bincount(x, minlength=5000))
one("histc", lambda x: torch.histc(x, 1000), 1 << 22)
one("cumsum", lambda x: x.cumsum(-1), 1024, 4096, grad=True)
one("cumsum of one long row", lambda x: x.cumsum(0), 1 << 22)
one("cumprod", lambda x: x.cumprod(-1), 1024, 1024)
one("cummax", lambda x: x.cummax(-1), 1024, 4096)
one("logcumsumexp", lambda x: x.logcumsumexp(-1), 1024, 2048)
one("logsumexp", lambda x: x.logsumexp(-1), 4096, 2048, grad=True)
one("sum", lambda x: (x.sum(), x.sum(0), x.mean(1)), 2048, 2048)
one("var_mean", lambda x: torch.var_mean(x, 0), 2048, 2048)
one("norm", lambda x: (x.norm(), x.norm(p=1, dim=1)), 2048, 2048)
one("argmax", lambda x: (x.argmax(), x.argmin(1)), 2048, 2048)
one("any and all", lambda x: ((x > 4).any(), (x > -9).all(0)), 2048, 2048)
one("prod", lambda x: x.abs().add(0.5).prod(1), 2048, 1024)
one("renorm", lambda x: x.renorm(2, 0, 1.0), 2048, 1024)
one("std over two", lambda x: x.std((1, 2)), 256, 128, 128)

# ---- shapes and copies ----

entry("cat of 200", lambda m: [m.normal(1 << 18) for _ in range(40)] * 5, lambda *x: torch.cat(x))
entry("stack", lambda m: [m.normal(512, 512) for _ in range(12)], lambda *x: torch.stack(x, 1), True)
one("split and cat", lambda x: torch.cat(x.split(100)[::-1]), 4096, 1024, grad=True)
one("permuted copy", lambda x: x.permute(2, 0, 3, 1).contiguous(), 64, 64, 32, 32, grad=True)
one("transposed add", lambda x: x + x.t(), 2048, 2048, grad=True)
one("roll and flip", lambda x: x.roll(17, 0).flip(1), 2048, 2048, grad=True)
one("pad", lambda x: F.pad(x, (3, 5, 2, 1), "reflect"), 16, 16, 128, 128, grad=True)
one("tril", lambda x: x.tril(), 2048, 2048, grad=True)
one("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), 16, 64, 64, 64, grad=True)
one("strided writes", lambda x: x.clone().as_strided((1000, 1000), (4000, 3)).mul_(2), 1 << 22)
one("to the host and back", lambda x: x.cpu().mul_(2).to(x.device), 2048, 2048)
one("pinned and back", lambda x: x.cpu().pin_memory().to(x.device, non_blocking=True), 2048, 2048)
one("casts", lambda x: (x.to(torch.bfloat16), x.to(torch.float64), x.to(torch.int8), x > 0), 2048, 2048)
one("bytes of it", lambda x: x.view(torch.uint8)[::3], 1 << 20)
one("expanded", lambda x: x[:, None].expand(-1, 8, -1).reshape(-1, 1024), 512, 1024, grad=True)
one("fill, zero, copy", lambda x: (torch.zeros_like(x), torch.full_like(x, 3), x.clone()), 2048, 2048)
one("meshgrid", lambda x: torch.meshgrid(x, x, indexing="ij"), 1500)

# ---- images ----

one("max_pool2d", lambda x: F.max_pool2d(x, 3, 2), 16, 64, 96, 96, grad=True)
one("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2), 16, 64, 96, 96, grad=True)
one("adaptive pools", lambda x: (F.adaptive_avg_pool2d(x, 7), F.adaptive_max_pool2d(x, 5))[0], 16, 64, 96, 96, grad=True)
one("interpolate bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 8, 32, 64, 64, grad=True)
one("interpolate bicubic", lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"), 8, 16, 64, 64, grad=True)
entry("grid_sample", lambda m: (m.normal(8, 16, 96, 96), m.uniform(8, 96, 96, 2) * 2 - 1), lambda x, g: F.grid_sample(x, g, align_corners=False), True)

# ---- Fourier transforms ----

one("fft", lambda x: torch.fft.fft(x), 256, 8192)
one("rfft2 and back", lambda x: torch.fft.irfft2(torch.fft.rfft2(x)), 16, 256, 256, grad=True)
one("fftn", lambda x: torch.fft.fftn(x, dim=(1, 2, 3)), 8, 64, 64, 32)
one("fft of an odd length", lambda x: torch.fft.fft(x), 256, 4099)
one("stft", lambda x: torch.stft(x, 1024, window=torch.hann_window(1024, device=x.device), return_complex=True), 8, 1 << 17)

# ---- linear algebra ----

entry("cholesky", lambda m: (m.positive(4, 512),), torch.linalg.cholesky)
entry("cholesky of many", lambda m: (m.positive(512, 48),), torch.linalg.cholesky, True)
entry("cholesky_solve", lambda m: (m.normal(64, 128, 32), torch.linalg.cholesky(m.positive(64, 128))), torch.cholesky_solve)
entry("solve", lambda m: (m.positive(1, 1024)[0], m.normal(1024, 512)), torch.linalg.solve, True)
entry("solve of many", lambda m: (m.positive(512, 32), m.normal(512, 32, 32)), torch.linalg.solve, True)
entry("inverse", lambda m: (m.positive(1, 1024)[0],), torch.linalg.inv)
entry("inverse of many", lambda m: (m.positive(512, 48),), torch.linalg.inv, True)
entry("lu_factor of many", lambda m: (m.positive(512, 48),), torch.linalg.lu_factor)
entry("lu_solve of many", lambda m: (m.positive(512, 32), m.normal(512, 32, 32)), lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b))
entry("det", lambda m: (m.positive(256, 64),), torch.linalg.det, True)
entry("triangular solve", lambda m: (m.positive(64, 128).tril(), m.normal(64, 128, 64)), lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), True)
one("qr", torch.linalg.qr, 4, 512, 256)
one("qr of many", torch.linalg.qr, 512, 48, 32)
one("svd", lambda a: torch.linalg.svdvals(a), 2, 512, 256)
one("svd of many", lambda a: torch.linalg.svdvals(a), 512, 32, 32)
entry("eigh", lambda m: (m.positive(2, 384),), torch.linalg.eigvalsh)
entry("eigh of many", lambda m: (m.positive(512, 32),), torch.linalg.eigvalsh)
one("eigenvalues", lambda a: torch.linalg.eigvals(a / 30).abs().sort()[0], 512, 512)
entry("lstsq", lambda m: (m.normal(64, 256, 64), m.normal(64, 256, 16)), lambda a, b: torch.linalg.lstsq(a, b).solution)
for dtype in (torch.float64, torch.complex64):
    entry(f"solve of many {dtype}", lambda m, d=dtype: (m.positive(256, 24).to(d), m.normal(256, 24, 24).to(d)), torch.linalg.solve)
    entry(f"cholesky_solve {dtype}", lambda m, d=dtype: (m.normal(64, 128, 32).to(d), torch.linalg.cholesky(m.positive(64, 128).to(d))), torch.cholesky_solve)
    entry(f"triangular solve {dtype}", lambda m, d=dtype: (m.positive(64, 128).tril().to(d), m.normal(64, 128, 64).to(d)), lambda a, b: torch.linalg.solve_triangular(a, b, upper=False))
entry("cholesky_inverse", lambda m: (torch.linalg.cholesky(m.positive(64, 128)),), torch.cholesky_inverse)
entry("ldl", lambda m: (m.positive(16, 128),), lambda a: torch.linalg.ldl_factor(a)[0])
entry("lobpcg", lambda m: (m.positive(1, 512)[0], m.normal(512, 8)), lambda a, x: torch.lobpcg(a, X=x, niter=4)[0])
one("slogdet", lambda a: torch.linalg.slogdet(a), 256, 64, 64)
one("matrix rank", lambda a: torch.linalg.matrix_rank(a), 64, 96, 64)
one("eigenvectors of many", lambda a: torch.linalg.eigh(a + a.mT)[0], 512, 24, 24)
one("matrix_exp", lambda a: torch.linalg.matrix_exp(a / 50), 16, 256, 256)
one("pinv", torch.linalg.pinv, 4, 256, 128)
one("cross", lambda a: torch.linalg.cross(a, a.roll(1, 0)), 1 << 18, 3)
one("householder", lambda a: torch.linalg.householder_product(*torch.geqrf(a)), 8, 256, 128)

# ---- sparse ----


def sparse(m, n, layout):
    x = m.normal(n, n)
    return torch.where(x.abs() > 2, x, 0).to_sparse(layout=layout)


entry("csr times dense", lambda m: (m.normal(2048, 512), sparse(m, 2048, torch.sparse_csr)), lambda b, a: a @ b)
entry("coo times dense", lambda m: (m.normal(2048, 512), sparse(m, 2048, torch.sparse_coo)), lambda b, a: a @ b)
entry("csr times vector", lambda m: (m.normal(4096), sparse(m, 4096, torch.sparse_csr)), lambda b, a: a @ b)
entry("csr times csr", lambda m: (sparse(m, 1024, torch.sparse_csr),), lambda a: (a @ a).to_dense())
entry("coalesce", lambda m: (m.integers(4096, 2, 1 << 19), m.normal(1 << 19)), lambda i, v: torch.sparse_coo_tensor(i, v, (4096, 4096)).coalesce().values())
entry("sampled addmm", lambda m: (sparse(m, 1024, torch.sparse_csr), m.normal(1024, 256), m.normal(256, 1024)), lambda a, b, c: torch.sparse.sampled_addmm(a, b, c).values())
one("largest two of four", lambda x: x.unflatten(-1, (-1, 4)).abs().topk(2, -1)[1], 2048, 2048)

# ---- random numbers ----


def seeded(f):
    def run(*inputs):
        torch.manual_seed(7)
        return f(*inputs)

    return run


one("random numbers", seeded(lambda x: (torch.randn_like(x), torch.rand_like(x), x.clone().exponential_(), x.clone().bernoulli_(0.2))), 2048, 1024)
entry("multinomial", lambda m: (m.uniform(512, 4096),), seeded(lambda p: torch.multinomial(p, 256, replacement=True)))
one("randperm", seeded(lambda x: torch.randperm(1 << 21, device=x.device)), 8)
entry("gumbel softmax", lambda m: (m.normal(2048, 1024),), seeded(lambda x: F.gumbel_softmax(x, hard=True)), True)

# ---- operations on many tensors at once ----


def many(m):
    return [m.normal(*shape) for shape in ((700, 513), (300_000,), (1024, 1024), (77, 7777), (2_000_000,), (5,)) for _ in range(6)]


entry("foreach add", many, lambda *x: torch._foreach_add(x, x, alpha=0.5))
entry("foreach mul by scalars", many, lambda *x: torch._foreach_mul(x, [0.1 * i for i in range(len(x))]))
entry("foreach addcdiv", many, lambda *x: torch._foreach_addcdiv(x, x, torch._foreach_add(torch._foreach_abs(x), 1.0), 0.3))
entry("foreach norm", many, lambda *x: torch._foreach_norm(x))
entry("foreach lerp", many, lambda *x: torch._foreach_lerp(x, torch._foreach_neg(x), 0.3))
entry("foreach copy", many, lambda *x: torch._foreach_copy_([torch.empty_like(t) for t in x], x))
entry("foreach max", many, lambda *x: torch._foreach_maximum(x, torch._foreach_neg(x)))


def optimise(kind, **options):
    def run(*tensors):
        parameters = [t.clone().requires_grad_() for t in tensors]
        optimizer = getattr(torch.optim, kind)(parameters, lr=0.01, **options)
        for i in range(3):
            for p, t in zip(parameters, tensors):
                p.grad = t * (0.1 * i + 0.1)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in parameters]

    return run


for kind in ("AdamW", "Adam", "SGD"):
    extra = {"momentum": 0.9} if kind == "SGD" else {}
    for way in ("fused", "foreach"):
        entry(f"{kind} {way}", many, optimise(kind, **{way: True}, **extra))
entry("AdamW alone", many, optimise("AdamW", foreach=False))
for kind in ("Adagrad", "RMSprop", "NAdam", "RAdam", "Adadelta", "Adamax", "Rprop"):
    entry(kind, many, optimise(kind))
entry("AdamW capturable", many, optimise("AdamW", capturable=True))


def unscale(*tensors):
    found, scale = torch.zeros(1, device=tensors[0].device), torch.full((1,), 0.25, device=tensors[0].device)
    torch._amp_foreach_non_finite_check_and_unscale_(list(tensors), found, scale)
    return [found, *tensors]


entry("unscaled gradients", many, lambda *x: unscale(*[t.clone() for t in x]))

# ---- ways of running ----


def checkpointed(f, x):
    return torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)


entry("checkpointed", lambda m: (m.module(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))), m.normal(2048, 1024)), checkpointed, True)
one("vmap", torch.vmap(lambda a: (a @ a.t()).softmax(-1)), 32, 256, 128)
one("gradient of a gradient", lambda x: torch.autograd.grad(torch.autograd.grad((x.sigmoid() ** 2).sum(), x, create_graph=True)[0].square().sum(), x)[0], 1024, 1024, grad=True)


def squeeze(device):
    """Touches other memory, so that what is idle leaves the device."""
    for i in range(24):
        torch.full((8 << 20,), float(i), device=device)


def captured(work, *inputs):
    """Of work on the inputs in a graph, which is replayed with other contents of them, each time after they had to leave."""
    still, side = [t.detach().clone() for t in inputs], torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        work(*still)  # what libraries allocate at first is not in the graph
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = work(*still)
    results = []
    for i in range(3):
        squeeze(still[0].device)
        for s, t in zip(still, inputs):
            if s.is_floating_point():
                s.copy_(t.detach() * (i + 1))
        graph.replay()
        results += [t.clone() for t in (y if isinstance(y, (tuple, list)) else [y])]
    return results


entry("captured graph", lambda m: (m.module(nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024))), m.normal(1024, 1024)), lambda f, x: captured(f, x))
entry("captured lstm", lambda m: (m.module(nn.LSTM(256, 256, batch_first=True)), m.normal(32, 64, 256)), lambda f, x: captured(lambda t: f(t)[0], x))
entry("captured grouped matmul", lambda m: (m.normal(2048, 1024, dtype=torch.bfloat16), m.normal(8, 1024, 1024, dtype=torch.bfloat16), torch.arange(1, 9, device=m.device, dtype=torch.int32) * 256), lambda *x: captured(grouped, *x))
entry("captured foreach", many, lambda *x: captured(lambda *t: torch._foreach_mul(t, 3.0), *x))
entry("captured sort and scan", lambda m: (m.normal(1 << 20),), lambda x: captured(lambda t: (t.sort()[0], t.cumsum(0)), x))


def captured_step(*tensors):
    """An optimizer's step in a graph."""
    parameters = [t.clone().requires_grad_() for t in tensors]
    for p, t in zip(parameters, tensors):
        p.grad = t.clone()
    optimizer = torch.optim.AdamW(parameters, lr=0.01, capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for _ in range(2):
        squeeze(tensors[0].device)
        graph.replay()
    return [p.detach() for p in parameters]


entry("captured optimizer", many, captured_step)


def beside(x):
    """Work on three streams that wait for one another."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    parts = []
    for i, s in enumerate(streams):
        s.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(s):
            part = x * (i + 1)
            for _ in range(4):
                part = part.sin() + x
            part.record_stream(torch.cuda.current_stream())
            parts.append(part)
    for s in streams:
        torch.cuda.current_stream().wait_stream(s)
    return sum(parts)


one("three streams", beside, 2048, 1024)


def half(f, x):
    with torch.autocast("cuda", torch.float16):
        return f(x)


entry("autocast", lambda m: (m.module(nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 16, 3, padding=1))), m.normal(8, 16, 96, 96)), half, True)


def nested(x):
    parts = torch.nested.nested_tensor([x[: 100 + 50 * i] for i in range(8)], layout=torch.jagged)
    return (parts * 2).sin().values()


one("nested tensors", nested, 1024, 1024)


def own_kernel(x, y):
    f = torch.cuda._compile_kernel(
        'extern "C" __global__ void axpy(const float* x, float* y, float a, long n) { for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) y[i] += a * x[i]; }', "axpy"
    )
    z = y.clone()
    f((256, 1, 1), (256, 1, 1), (x, z, 1.5, x.numel()))
    return z


entry("a kernel of one's own", lambda m: (m.normal(1 << 21), m.normal(1 << 21)), own_kernel)


def written_at_run_time(x, y):
    f = torch.cuda.jiterator._create_jit_fn("template <typename T> T blend(T x, T y, T a) { return x * a + y * (1 - a); }", a=0.25)
    return f(x, y)


entry("jiterator", lambda m: (m.normal(2048, 1024), m.normal(2048, 1024)), written_at_run_time)
one("special functions", lambda x: (torch.special.bessel_j1(x), torch.special.zeta(x.abs() + 1.5, torch.ones_like(x)), torch.lgamma(x)), 1024, 1024)
entry("gcd", lambda m: (m.integers(1 << 20, 1 << 20), m.integers(1 << 20, 1 << 20)), torch.gcd)


def table_of_addresses(*tensors):
    """A kernel that finds its tensors through a table in device memory."""
    f = torch.cuda._compile_kernel(
        'extern "C" __global__ void sums(float** x, float* y, int n, long each) { for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < each; i += (long)gridDim.x * blockDim.x) { float s = 0; for (int k = 0; k < n; k++) s += x[k][i]; y[i] = s; } }', "sums"
    )
    table = torch.tensor([t.data_ptr() for t in tensors], device=tensors[0].device)
    y = torch.empty_like(tensors[0])
    f((256, 1, 1), (256, 1, 1), (table, y, len(tensors), y.numel()))
    return y


entry("a table of addresses", lambda m: [m.normal(1 << 20) for _ in range(8)], table_of_addresses)


def pinned_table(*tensors):
    """The same with the table in pinned host memory, where kernels reach it as well."""
    f = torch.cuda._compile_kernel(
        'extern "C" __global__ void sums_of(float** x, float* y, int n, long each) { for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < each; i += (long)gridDim.x * blockDim.x) { float s = 0; for (int k = 0; k < n; k++) s += x[k][i]; y[i] = s; } }', "sums_of"
    )
    table = torch.tensor([t.data_ptr() for t in tensors]).pin_memory()
    y = torch.empty_like(tensors[0])
    f((256, 1, 1), (256, 1, 1), (table, y, len(tensors), y.numel()))
    torch.cuda.synchronize()  # while the table lives
    return y


entry("a table in pinned memory", lambda m: [m.normal(1 << 20) for _ in range(8)], pinned_table)


def through_dlpack(x):
    y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    return y * 2 + math.pi


one("dlpack", through_dlpack, 2048, 1024)
