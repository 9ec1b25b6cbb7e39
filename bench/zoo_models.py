"""The architectures of zoo.py, and the job that trains one of them.

Configurations are small, but tensors are not: a peak of some 0.3 to 2 GiB, most of it in tensors of 1 MiB and more, which
the explicit engine moves. Weights are random; nothing is loaded. An entry is a function of a Size that gives a model and a
function from a generator of numbers to a loss.
"""

import warnings
import zlib
from contextlib import nullcontext

ZOO = {}


class Size:
    """Where a model runs, and how large its batches are: on the CPU as small as they can be."""

    def __init__(self, device):
        self.device, self.small = device, device == "cpu"

    def batch(self, n):
        return min(n, 2) if self.small else n

    def length(self, n):
        return min(n, 64) if self.small else n


def entry(name, build, amp=False, deterministic=True):
    """amp: under autocast to bfloat16. deterministic: False where PyTorch's deterministic algorithms make something else of the model."""
    if name in ZOO:
        raise ValueError(f"{name} is there twice")
    ZOO[name] = (build, amp, deterministic)


# ---- the job ----


def settle(deterministic=True):
    """Makes this process repeat itself as far as PyTorch can."""
    import random

    import numpy
    import torch

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # its backward adds in any order
    torch.backends.cuda.enable_cudnn_sdp(False)
    warnings.filterwarnings("ignore")


def digest(tensors):
    """One CRC of what is in them, as bytes."""
    import torch

    value = 0
    for t in tensors:
        t = t.detach()
        if t.is_complex():
            t = torch.view_as_real(t)
        value = zlib.crc32(t.contiguous().reshape(-1).cpu().view(torch.uint8).numpy(), value)
    return value


def train(emit, name, device, iterations):
    import torch

    build, amp, deterministic = ZOO[name]
    settle(deterministic)
    model, loss_of = build(Size(device))
    model.to(device).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    losses = []
    for i in range(iterations):
        generator = torch.Generator().manual_seed(i)
        with torch.autocast(device, torch.bfloat16) if amp else nullcontext():
            loss = loss_of(model, generator)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    digests = [digest(parameters), digest(b for b in model.buffers() if b.numel())]
    emit(result={"losses": losses, "digests": digests}, peak_bytes=peak, parameters=sum(p.numel() for p in parameters))


def loss_in(output):
    """The loss that a model gives, or else one made of its first floating-point output."""

    if getattr(output, "loss", None) is not None:
        return output.loss
    for t in _floating(output.values() if hasattr(output, "values") else output):
        return t.float().square().mean()
    raise TypeError(f"no floating-point tensor in {type(output).__name__}")


def _floating(outputs):
    import torch

    for x in [outputs] if isinstance(outputs, torch.Tensor) else outputs:
        if isinstance(x, torch.Tensor):
            if x.is_floating_point() and x.requires_grad:
                yield x
        elif isinstance(x, (tuple, list)):
            yield from _floating(x)


# ---- transformers ----

# What a configuration is made small with, where it has it; an entry's own come before.
COMMON = dict(
    hidden_size=512, d_model=512, n_embd=512, embed_dim=512, dim=512, emb_dim=512, intermediate_size=1408, ffn_dim=1408, d_ff=1408, d_inner=1408, hidden_dim=1408,
    encoder_ffn_dim=1408, decoder_ffn_dim=1408, num_hidden_layers=4, num_layers=3, num_decoder_layers=3, n_layer=4, n_layers=4, encoder_layers=3, decoder_layers=3,
    num_attention_heads=8, n_head=8, n_heads=8, num_heads=8, encoder_attention_heads=8, decoder_attention_heads=8, num_key_value_heads=4, head_dim=64, d_kv=64,
    vocab_size=8192, max_position_embeddings=1024, n_positions=1024, pad_token_id=0, bos_token_id=1, eos_token_id=2, use_cache=False,
    num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=704,
)  # fmt: skip


def configuration(cls, overrides):
    """overrides of ... stand for what this configuration has, but does not take."""
    config_class = cls.config_class
    known, names = config_class(), dict(getattr(config_class, "attribute_map", {}))
    kwargs = {k: v for k, v in COMMON.items() if k not in overrides and takes(known, names, k)}
    for alias, real in names.items():  # an attribute and its other name are one
        if alias in kwargs and (real in kwargs or real in overrides):
            del kwargs[alias]
    return config_class(**kwargs, **{k: v for k, v in overrides.items() if v is not ...})


def takes(known, names, key):
    if isinstance(getattr(type(known), key, None), property):
        return False
    return key in names or hasattr(known, key) and not isinstance(getattr(known, key), (list, tuple))  # one for each stage


def hf(cls_name, inputs, amp=False, deterministic=True, name=None, **overrides):
    """inputs(config, size, generator) gives the keyword arguments of a call."""

    def build(size):
        import transformers

        cls = getattr(transformers, cls_name)
        model = cls(configuration(cls, overrides))

        def loss_of(model, generator):
            given = {k: v.to(size.device) if hasattr(v, "to") else v for k, v in inputs(model.config, size, generator).items()}
            return loss_in(model(**given))

        return model, loss_of

    entry(f"transformers {name or cls_name}", build, amp, deterministic)


def ids(config, size, generator, batch, length):
    import torch

    return torch.randint(3, config.get_text_config().vocab_size, (size.batch(batch), size.length(length)), generator=generator)


def tokens(batch=8, length=512, labels=True):
    def inputs(config, size, generator):
        x = ids(config, size, generator, batch, length)
        return {"input_ids": x, "labels": x} if labels else {"input_ids": x}

    return inputs


def characters(batch=4, length=512):
    def inputs(config, size, generator):
        import torch

        return {"input_ids": torch.randint(3, 4096, (size.batch(batch), size.length(length)), generator=generator)}

    return inputs


def pairs(batch=8, length=384, target=256):
    def inputs(config, size, generator):
        return {"input_ids": ids(config, size, generator, batch, length), "labels": ids(config, size, generator, batch, target)}

    return inputs


def image(batch=16, pixels=224, labels=True, channels=3):
    def inputs(config, size, generator):
        import torch

        b = size.batch(batch)
        x = {"pixel_values": torch.randn(b, channels, pixels, pixels, generator=generator)}
        if labels:
            x["labels"] = torch.randint(0, config.num_labels, (b,), generator=generator)
        return x

    return inputs


def waves(batch=4, seconds=4):
    def inputs(config, size, generator):
        import torch

        b = size.batch(batch)
        samples = 8000 if size.small else 16000 * seconds
        return {"input_values": torch.randn(b, samples, generator=generator), "labels": torch.randint(0, config.num_labels, (b,), generator=generator)}

    return inputs


def masked_image(batch, pixels=224, patch=16):
    def inputs(config, size, generator):
        import torch

        x = image(batch, pixels, labels=False)(config, size, generator)
        n = (pixels // patch) ** 2
        return {**x, "bool_masked_pos": torch.rand(len(x["pixel_values"]), n, generator=generator) < 0.4}

    return inputs


def maps(batch, pixels):
    def inputs(config, size, generator):
        import torch

        x = image(batch, pixels, labels=False)(config, size, generator)
        return {**x, "labels": torch.randint(0, config.num_labels, (len(x["pixel_values"]), pixels, pixels), generator=generator)}

    return inputs


def boxes(batch, pixels):
    def inputs(config, size, generator):
        import torch

        x = image(batch, pixels, labels=False)(config, size, generator)

        def target():
            corner = torch.rand(5, 2, generator=generator) * 0.5
            return {"class_labels": torch.randint(0, config.num_labels, (5,), generator=generator).to(size.device), "boxes": torch.cat([corner + 0.2, corner * 0.5 + 0.1], 1).to(size.device)}

        return {**x, "labels": [target() for _ in x["pixel_values"]]}

    return inputs


def video(batch, frames=8):
    def inputs(config, size, generator):
        import torch

        n = size.batch(batch)
        return {"pixel_values": torch.randn(n, frames, 3, 224, 224, generator=generator), "labels": torch.randint(0, config.num_labels, (n,), generator=generator)}

    return inputs


def speech(batch=4):
    def inputs(config, size, generator):
        import torch

        x = waves(batch)(config, size, generator)
        return {**x, "labels": torch.randint(3, config.vocab_size, (len(x["input_values"]), 20), generator=generator)}

    return inputs


def spectra(key, length, bins, classes, batch=8):
    """Of sound: to be classified, or to be written down."""

    def inputs(config, size, generator):
        import torch

        n = size.batch(batch)
        x = {key: torch.randn(n, length, bins, generator=generator)}
        x["labels"] = torch.randint(0, config.num_labels, (n,), generator=generator) if classes else ids(config, size, generator, batch, 128)
        return x

    return inputs


def whisper(batch):
    def inputs(config, size, generator):
        import torch

        n = size.batch(batch)
        return {"input_features": torch.randn(n, 80, 1500, generator=generator), "labels": ids(config, size, generator, batch, 256)}

    return inputs


def text_and_image(batch):
    def inputs(config, size, generator):
        x = image(batch, labels=False)(config, size, generator)
        return {**x, "input_ids": ids(config, size, generator, batch, 64), "return_loss": True}

    return inputs


def vilt(batch):
    def inputs(config, size, generator):
        import torch

        x = image(batch, labels=False)(config, size, generator)
        return {**x, "input_ids": ids(config, size, generator, batch, 32), "labels": torch.rand(len(x["pixel_values"]), config.num_labels, generator=generator)}

    return inputs


def series(batch, length):
    def inputs(config, size, generator):
        import torch

        n = size.batch(batch)
        x = torch.randn(n, length + config.prediction_length, config.num_input_channels, generator=generator)
        return {"past_values": x[:, :length], "future_values": x[:, length:]}

    return inputs


# Decoders.
for cls_name in (
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM", "Gemma2ForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM", "CohereForCausalLM",
    "Cohere2ForCausalLM", "OlmoForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM", "Starcoder2ForCausalLM", "StableLmForCausalLM", "PersimmonForCausalLM", "GraniteForCausalLM",
    "NemotronForCausalLM", "GlmForCausalLM", "Glm4ForCausalLM", "HeliumForCausalLM", "SmolLM3ForCausalLM", "Ernie4_5ForCausalLM", "Exaone4ForCausalLM", "SeedOssForCausalLM",
    "ArceeForCausalLM", "ApertusForCausalLM", "HunYuanDenseV1ForCausalLM", "DiffLlamaForCausalLM", "NanoChatForCausalLM", "MinistralForCausalLM", "ModernBertDecoderForCausalLM", "GPTNeoXForCausalLM", "FalconForCausalLM", "GPT2LMHeadModel", "GPTBigCodeForCausalLM",
    "GPTNeoForCausalLM", "OPTForCausalLM", "BloomForCausalLM", "MptForCausalLM", "BioGptForCausalLM", "XGLMForCausalLM", "CTRLLMHeadModel", "OpenAIGPTLMHeadModel",
    "Gemma3ForCausalLM", "BitNetForCausalLM", "Lfm2ForCausalLM", "DogeForCausalLM",
):  # fmt: skip
    own = {
        "GPTNeoForCausalLM": dict(attention_types=[[["global", "local"], 2]], num_layers=4),
        "CTRLLMHeadModel": dict(dff=1408),
        "Lfm2ForCausalLM": dict(layer_types=["conv", "full_attention"] * 2),
    }.get(cls_name, {})
    hf(cls_name, tokens(), **own)
hf("LlamaForCausalLM", tokens(16, 512), amp=True, name="Llama, bf16 autocast")
hf("GPT2LMHeadModel", tokens(16, 512), amp=True, name="GPT-2, bf16 autocast")
hf("Qwen3ForCausalLM", tokens(16, 512), amp=True, name="Qwen3, bf16 autocast")
hf("GPTJForCausalLM", tokens(), rotary_dim=32)
hf("CodeGenForCausalLM", tokens(), rotary_dim=32)
# Mixtures of experts.
for cls_name in ("MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "OlmoeForCausalLM", "PhimoeForCausalLM", "GraniteMoeForCausalLM", "JetMoeForCausalLM", "GptOssForCausalLM", "FlexOlmoForCausalLM"):
    hf(cls_name, tokens(4, 512))
hf("DeepseekV2ForCausalLM", tokens(4, 512), n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1, num_key_value_heads=8, q_lora_rank=128, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=64, head_dim=32)
hf("DeepseekV3ForCausalLM", tokens(4, 512), n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1, num_key_value_heads=8, q_lora_rank=128, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=64, head_dim=32)
hf("Dots1ForCausalLM", tokens(4, 512), n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1)
hf("Glm4MoeForCausalLM", tokens(4, 512), n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1)
# State spaces and other recurrences, without kernels of their own.
hf("MambaForCausalLM", tokens(2, 128), state_size=16, num_hidden_layers=2)
hf("FalconMambaForCausalLM", tokens(2, 128), state_size=16, num_hidden_layers=2)
hf("Mamba2ForCausalLM", tokens(4, 512), num_heads=16, head_dim=64, state_size=64, n_groups=1, num_hidden_layers=2, chunk_size=64)
hf("RwkvForCausalLM", tokens(2, 64), context_length=512, attention_hidden_size=512)
hf("RecurrentGemmaForCausalLM", tokens(2, 128), lru_width=512, num_hidden_layers=3)
hf("xLSTMForCausalLM", tokens(2, 128), num_blocks=2, num_hidden_layers=2)

# Encoders of text.
for cls_name in (
    "BertForMaskedLM", "RobertaForMaskedLM", "ElectraForMaskedLM", "AlbertForMaskedLM", "DistilBertForMaskedLM", "DebertaForMaskedLM", "DebertaV2ForMaskedLM", "MPNetForMaskedLM", "CamembertForMaskedLM",
    "EsmForMaskedLM", "SqueezeBertForMaskedLM", "RoFormerForMaskedLM", "ConvBertForMaskedLM", "FNetForMaskedLM", "ErnieForMaskedLM", "MegatronBertForMaskedLM", "IBertForMaskedLM",
    "ModernBertForMaskedLM", "Data2VecTextForMaskedLM", "NystromformerForMaskedLM", "YosoForMaskedLM", "RemBertForMaskedLM", "XmodForMaskedLM", "RobertaPreLayerNormForMaskedLM", "NomicBertForMaskedLM",
    "MobileBertForMaskedLM", "FunnelForMaskedLM", "LongformerForMaskedLM", "BigBirdForMaskedLM", "XLNetLMHeadModel", "XLMWithLMHeadModel", "FlaubertWithLMHeadModel", "LayoutLMForMaskedLM",
):  # fmt: skip
    own = {
        "XmodForMaskedLM": dict(languages=["en_XX"], default_language="en_XX"),
        "LongformerForMaskedLM": dict(attention_window=128),
        "EsmForMaskedLM": dict(mask_token_id=4),
        "ConvBertForMaskedLM": dict(embedding_size=512),
        "FunnelForMaskedLM": dict(block_sizes=[2, 2], num_hidden_layers=...),
        "SqueezeBertForMaskedLM": dict(embedding_size=512),
        "XLNetLMHeadModel": dict(max_position_embeddings=...),
        "YosoForMaskedLM": dict(use_expectation=True),
        "MobileBertForMaskedLM": dict(num_hidden_layers=4, hidden_size=512, intermediate_size=512, num_attention_heads=4),
        "NystromformerForMaskedLM": dict(segment_means_seq_len=64, num_landmarks=64, max_position_embeddings=1024),
    }.get(cls_name, {})
    hf(cls_name, tokens(), **own)
hf("BertForMaskedLM", tokens(16, 512), amp=True, name="BERT, bf16 autocast")
hf("CanineForSequenceClassification", characters(), num_hidden_layers=2)

# Encoders and decoders.
for cls_name in (
    "T5ForConditionalGeneration", "MT5ForConditionalGeneration", "UMT5ForConditionalGeneration", "LongT5ForConditionalGeneration", "SwitchTransformersForConditionalGeneration", "BartForConditionalGeneration", "MBartForConditionalGeneration",
    "PegasusForConditionalGeneration", "PegasusXForConditionalGeneration", "MarianMTModel", "M2M100ForConditionalGeneration", "BlenderbotForConditionalGeneration", "BlenderbotSmallForConditionalGeneration",
    "LEDForConditionalGeneration", "ProphetNetForConditionalGeneration", "PLBartForConditionalGeneration", "MvpForConditionalGeneration", "FSMTForConditionalGeneration", "NllbMoeForConditionalGeneration",
):  # fmt: skip
    own = {
        "FSMTForConditionalGeneration": dict(langs=["en", "de"], src_vocab_size=8192, tgt_vocab_size=8192),
        "LEDForConditionalGeneration": dict(attention_window=128, max_encoder_position_embeddings=1024, max_decoder_position_embeddings=1024),
        "ProphetNetForConditionalGeneration": dict(num_hidden_layers=..., num_encoder_layers=3, num_decoder_layers=3, num_encoder_attention_heads=8, num_decoder_attention_heads=8),
        "NllbMoeForConditionalGeneration": dict(expert_capacity=64, encoder_sparse_step=2, decoder_sparse_step=2),
    }.get(cls_name, {})
    hf(cls_name, pairs(), decoder_start_token_id=1, **own)

# Images.
VIT = dict(hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=6)
for cls_name in ("ViTForImageClassification", "DeiTForImageClassification", "Dinov2ForImageClassification", "Dinov2WithRegistersForImageClassification", "ViTMSNForImageClassification", "IJepaForImageClassification"):
    hf(cls_name, image(32), **VIT, num_labels=1000)
hf("BeitForImageClassification", image(32), **VIT, num_labels=1000)
hf("Data2VecVisionForImageClassification", image(32), **VIT, num_labels=1000)
hf("SwinForImageClassification", image(16), embed_dim=96, depths=[2, 2, 2, 2], num_heads=[3, 6, 12, 24], num_labels=1000)
hf("Swinv2ForImageClassification", image(8, 256), embed_dim=96, depths=[2, 2, 2, 2], num_heads=[3, 6, 12, 24], image_size=256, window_size=8, num_labels=1000)
hf("ConvNextForImageClassification", image(16), hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 4, 2], num_labels=1000)
hf("ConvNextV2ForImageClassification", image(16), hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 4, 2], num_labels=1000)
for cls_name in (
    "ResNetForImageClassification", "RegNetForImageClassification", "MobileNetV1ForImageClassification", "MobileNetV2ForImageClassification", "PoolFormerForImageClassification", "LevitForImageClassification", "PvtForImageClassification",
    "PvtV2ForImageClassification", "CvtForImageClassification", "SegformerForImageClassification", "BitForImageClassification", "SwiftFormerForImageClassification", "HGNetV2ForImageClassification", "TextNetForImageClassification",
):  # fmt: skip
    hf(cls_name, image(16), num_labels=1000)
hf("FocalNetForImageClassification", image(16), embed_dim=96, num_labels=1000)
hf("HieraForImageClassification", image(16), embed_dim=96, num_labels=1000)
hf("MobileViTForImageClassification", image(16, 256), hidden_sizes=[144, 192, 240], num_labels=1000, hidden_size=..., intermediate_size=..., num_attention_heads=4)
hf("MobileViTV2ForImageClassification", image(16, 256), num_labels=1000)
hf("EfficientNetForImageClassification", image(16), image_size=224, width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, num_labels=1000)
hf("ViTForMaskedImageModeling", masked_image(32), **VIT, encoder_stride=16)
hf("ViTMAEForPreTraining", image(32, labels=False), **VIT, decoder_hidden_size=256, decoder_num_hidden_layers=2, decoder_intermediate_size=512, decoder_num_attention_heads=8)
hf("DPTForDepthEstimation", image(8, 224, labels=False), **VIT, image_size=224, backbone_out_indices=[0, 2, 4, 5], is_hybrid=False, neck_hidden_sizes=[48, 96, 192, 384], fusion_hidden_size=128)
hf("GLPNForDepthEstimation", image(8, 224, labels=False))
hf("SegformerForSemanticSegmentation", maps(8, 256), num_labels=32)
hf("BeitForSemanticSegmentation", maps(8, 224), **VIT, num_labels=32, out_indices=[1, 2, 4, 6], image_size=224)
hf("YolosForObjectDetection", boxes(4, 256), **VIT, image_size=[256, 256], num_labels=16, num_detection_tokens=50)
hf("VideoMAEForVideoClassification", video(4), **VIT, num_frames=8, num_labels=100)
hf("TimesformerForVideoClassification", video(4), **VIT, num_frames=8, num_labels=100)
hf("VivitForVideoClassification", video(4), **VIT, num_frames=8, num_labels=100)

# Sound.
SPEECH = dict(conv_dim=[256] * 7, num_labels=32, classifier_proj_size=128)
for cls_name in ("Wav2Vec2ForSequenceClassification", "HubertForSequenceClassification", "WavLMForSequenceClassification", "UniSpeechForSequenceClassification", "Data2VecAudioForSequenceClassification", "Wav2Vec2ConformerForSequenceClassification", "SEWForSequenceClassification"):
    hf(cls_name, waves(), **({"num_labels": 32} if cls_name.startswith("SEW") else SPEECH))
hf("Wav2Vec2ForCTC", speech(), conv_dim=[256] * 7, vocab_size=64)
hf("ASTForAudioClassification", spectra("input_values", 1024, 128, True), **VIT, num_labels=32)
hf("WhisperForConditionalGeneration", whisper(4), encoder_layers=3, decoder_layers=3, max_source_positions=750, max_target_positions=512, decoder_start_token_id=1, num_hidden_layers=...)
hf("Speech2TextForConditionalGeneration", spectra("input_features", 1024, 80, False), max_source_positions=1024, decoder_start_token_id=1, num_hidden_layers=...)

# Text and images.
TEXT, VISION = dict(hidden_size=384, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=6, vocab_size=8192), dict(VIT, image_size=224, patch_size=16)
hf("CLIPModel", text_and_image(16), text_config=dict(TEXT, eos_token_id=2, bos_token_id=1, pad_token_id=0, max_position_embeddings=128), vision_config=VISION, projection_dim=256)
hf("SiglipModel", text_and_image(16), text_config=dict(TEXT, max_position_embeddings=128, eos_token_id=2, bos_token_id=1, pad_token_id=0, projection_size=384), vision_config=VISION)
hf("AltCLIPModel", text_and_image(16), text_config=dict(TEXT, max_position_embeddings=160, pad_token_id=0, project_dim=256), vision_config=VISION, projection_dim=256)
hf("ViltForQuestionAnswering", vilt(8), **VIT, vocab_size=8192, image_size=224, patch_size=16, max_position_embeddings=64, num_labels=64)

# Series of numbers.
hf("PatchTSTForPrediction", series(32, 512), num_input_channels=16, context_length=512, prediction_length=96, patch_length=16, patch_stride=8, d_model=256, num_attention_heads=8, ffn_dim=1024)
hf("PatchTSMixerForPrediction", series(32, 512), num_input_channels=16, context_length=512, prediction_length=96, patch_length=16, patch_stride=8, d_model=256)


# ---- timm ----


def timm(model, batch=16, pixels=224, amp=False):
    def build(size):
        import timm
        import torch

        model_ = timm.create_model(model, num_classes=1000)

        def loss_of(m, generator):
            n = size.batch(batch)
            x, y = torch.randn(n, 3, pixels, pixels, generator=generator), torch.randint(0, 1000, (n,), generator=generator)
            out = m(x.to(size.device))
            return torch.nn.functional.cross_entropy(out[0] if isinstance(out, tuple) else out, y.to(size.device))

        return model_, loss_of

    entry(f"timm {model}" + (", bf16 autocast" if amp else ""), build, amp)


for model in (
    "resnet18", "resnet50", "resnext50_32x4d", "seresnet50", "ecaresnet26t", "resnetv2_50", "res2net50_26w_4s", "resnest14d", "skresnet18", "legacy_seresnet18", "densenet121", "efficientnet_b0", "mobilenetv3_large_100", "mnasnet_100",
    "mixnet_s", "ghostnet_100", "repvgg_a0", "regnety_008", "regnetx_008", "dla34", "dpn48b", "hrnet_w18_small", "cspdarknet53", "darknet53", "vovnet39a", "xception41", "inception_v4", "inception_next_tiny", "nfnet_f0", "rexnet_100",
    "selecsls42", "tresnet_m", "convnext_atto", "convnextv2_atto", "convmixer_768_32", "edgenext_small", "efficientformer_l1", "efficientvit_b1", "efficientvit_m2", "fastvit_t8", "starnet_s1", "repvit_m1", "mobileone_s1", "mambaout_femto",
    "poolformer_s12", "caformer_s18", "hgnet_tiny", "fasternet_t1", "lcnet_100", "fbnetv3_b", "tinynet_a", "nextvit_small",
    "vit_tiny_patch16_224", "deit3_small_patch16_224", "beit_base_patch16_224", "cait_xxs24_224", "coat_lite_tiny", "convit_tiny", "crossvit_9_240", "davit_tiny", "eva02_tiny_patch14_224", "gcvit_xxtiny", "hiera_tiny_224",
    "levit_128", "mvitv2_tiny", "nest_tiny", "pit_ti_224", "pvt_v2_b0", "sequencer2d_s", "swin_tiny_patch4_window7_224", "tiny_vit_5m_224", "tnt_s_patch16_224", "twins_svt_small", "visformer_tiny", "volo_d1_224", "xcit_nano_12_p16_224",
    "mixer_s16_224", "resmlp_12_224", "gmlp_s16_224", "vit_relpos_small_patch16_224", "vit_small_r26_s32_224",
):  # fmt: skip
    timm(model, pixels=240 if model.endswith("_240") else 224)
timm("swinv2_tiny_window8_256", 8, 256)
timm("maxvit_tiny_rw_224", 8)
timm("coatnet_0_rw_224", 8)
timm("halonet26t", 8, 256)
timm("botnet26t_256", 8, 256)
timm("mobilevit_s", 16, 256)
timm("resnet50", 32, amp=True)
timm("vit_small_patch16_224", 32, amp=True)
timm("convnext_tiny", 16, amp=True)


# ---- torchvision ----


def tv(family, model, batch, make_inputs, loss_from, deterministic=True, **kwargs):
    def build(size):
        import torchvision

        module = getattr(torchvision.models, family) if family else torchvision.models
        built = module.__dict__[model](weights=None, **({"weights_backbone": None} if family in ("segmentation", "detection") else {}), **kwargs)
        return built, lambda m, generator: loss_from(m, make_inputs(size, size.batch(batch), generator))

    entry(f"torchvision {model}", build, deterministic=deterministic)


def labelled(*shape, classes=1000):
    def make(size, n, generator):
        import torch

        return torch.randn(n, *shape, generator=generator).to(size.device), torch.randint(0, classes, (n,), generator=generator).to(size.device)

    return make


def classified(m, batch):
    import torch

    x, y = batch
    out = m(x)
    outs = out if isinstance(out, tuple) else [out]
    return sum(torch.nn.functional.cross_entropy(o, y) for o in outs if o is not None)


for model in (
    "alexnet", "vgg11_bn", "googlenet", "mnasnet1_0", "mobilenet_v2", "shufflenet_v2_x1_0", "squeezenet1_1", "efficientnet_v2_s", "regnet_y_400mf", "resnet34", "wide_resnet50_2", "densenet121",
    "convnext_tiny", "swin_t", "swin_v2_t", "vit_b_32", "maxvit_t",
):  # fmt: skip
    tv("", model, 8 if model in ("maxvit_t", "wide_resnet50_2", "efficientnet_v2_s") else 16, labelled(3, 224, 224), classified)
tv("", "inception_v3", 8, labelled(3, 299, 299), classified, init_weights=False)
for model in ("r3d_18", "mc3_18", "r2plus1d_18", "s3d"):
    tv("video", model, 4, labelled(3, 16, 224, 224, classes=400) if model == "s3d" else labelled(3, 8, 112, 112, classes=400), classified)
tv("video", "mvit_v2_s", 2, labelled(3, 16, 224, 224, classes=400), classified)
tv("video", "swin3d_t", 2, labelled(3, 8, 224, 224, classes=400), classified)


def pixelwise(size, n, generator):
    import torch

    return torch.randn(n, 3, 192, 192, generator=generator).to(size.device), torch.randint(0, 21, (n, 192, 192), generator=generator).to(size.device)


def segmented(m, batch):
    import torch

    return sum(torch.nn.functional.cross_entropy(o, batch[1]) for o in m(batch[0]).values())


for model in ("fcn_resnet50", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"):
    tv("segmentation", model, 4, pixelwise, segmented)


def objects(pixels, masks=False, keypoints=False):
    def make(size, n, generator):
        import torch

        images, targets = [], []
        for _ in range(n):
            corner = torch.rand(6, 2, generator=generator) * pixels / 2
            box = torch.cat([corner, corner + 16 + torch.rand(6, 2, generator=generator) * (pixels / 2 - 20)], 1)
            t = {"boxes": box, "labels": torch.randint(1, 20, (6,), generator=generator)}
            if masks:
                t["masks"] = (torch.rand(6, pixels, pixels, generator=generator) > 0.5).to(torch.uint8)
            if keypoints:
                points = box[:, None, :2] + torch.rand(6, 17, 2, generator=generator) * (box[:, None, 2:] - box[:, None, :2])
                t["keypoints"] = torch.cat([points, torch.ones(6, 17, 1)], 2)
                t["labels"] = torch.ones(6, dtype=torch.int64)
            images.append(torch.rand(3, pixels, pixels, generator=generator).to(size.device))
            targets.append({k: v.to(size.device) for k, v in t.items()})
        return images, targets

    return make


def detected(m, batch):
    return sum(m(*batch).values())


# With deterministic algorithms RoIAlign is a compiled Python function instead of its kernel.
for model, make, size in (
    ("fasterrcnn_resnet50_fpn", objects(320), 320), ("fasterrcnn_mobilenet_v3_large_320_fpn", objects(320), 320), ("maskrcnn_resnet50_fpn", objects(320, masks=True), 320), ("keypointrcnn_resnet50_fpn", objects(320, keypoints=True), 320),
    ("retinanet_resnet50_fpn", objects(320), 320), ("fcos_resnet50_fpn", objects(320), 320),
):  # fmt: skip
    tv("detection", model, 2, make, detected, deterministic=False, min_size=size, max_size=size, **({"num_classes": 2} if "keypoint" in model else {"num_classes": 21}))
tv("detection", "ssd300_vgg16", 4, objects(300), detected, deterministic=False, num_classes=21)
tv("detection", "ssdlite320_mobilenet_v3_large", 8, objects(320), detected, deterministic=False, num_classes=21)


def two_frames(size, n, generator):
    import torch

    return [torch.rand(n, 3, 256, 256, generator=generator).to(size.device) for _ in range(2)]


def flows(m, batch):
    return sum(f.abs().mean() for f in m(*batch, num_flow_updates=3))


tv("optical_flow", "raft_small", 2, two_frames, flows)


# ---- PyTorch Geometric ----


def graph(size, generator, nodes=20000, edges=120000, features=128):
    import torch

    nodes, edges = (400, 2000) if size.small else (nodes, edges)
    index = torch.randint(0, nodes, (2, edges), generator=generator)
    x, y = torch.randn(nodes, features, generator=generator), torch.randint(0, 16, (nodes,), generator=generator)
    return x.to(size.device), index.to(size.device), y.to(size.device)


def pyg(name, make, call=None):
    """A model of nodes' classes: make(torch_geometric.nn) builds it, call(model, x, index) gives 16 figures for each node."""

    def build(size):
        import torch
        import torch_geometric.nn as nn

        def loss_of(m, generator):
            x, index, y = graph(size, generator)
            return torch.nn.functional.cross_entropy((call or (lambda m, x, i: m(x, i)))(m, x, index), y)

        return make(nn), loss_of

    entry(f"PyG {name}", build)


for name in ("GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN"):
    pyg(name, lambda nn, n=name: getattr(nn, n)(128, 256, 3, out_channels=16, **({"heads": 4} if n == "GAT" else {})))
pyg("GATv2", lambda nn: nn.GAT(128, 256, 3, out_channels=16, heads=4, v2=True))
pyg("MLP", lambda nn: nn.MLP([128, 512, 512, 16]), lambda m, x, i: m(x))
pyg("GraphUNet", lambda nn: nn.GraphUNet(128, 128, 16, depth=2))


def pyg_layers(name, first, second):
    """Two convolutions: first(nn) from 128 features to 256, second(nn) to 16."""

    def make(nn):
        import torch

        return nn.Sequential("x, index", [(first(nn), "x, index -> x"), torch.nn.ReLU(), (second(nn), "x, index -> x")])

    pyg(name, make)


for name, kwargs in (
    ("TransformerConv", {}), ("ChebConv", {"K": 3}), ("TAGConv", {}), ("SGConv", {"K": 2}), ("ARMAConv", {}), ("ResGatedGraphConv", {}), ("GraphConv", {}), ("LEConv", {}), ("ClusterGCNConv", {}), ("FiLMConv", {}), ("MFConv", {"max_degree": 4}),
    ("GENConv", {}), ("SSGConv", {"alpha": 0.1, "K": 2}), ("FeaStConv", {"heads": 2}), ("EGConv", {"num_heads": 4}), ("GeneralConv", {}),
):  # fmt: skip
    pyg_layers(name, lambda nn, n=name, k=kwargs: getattr(nn, n)(128, 256, **k), lambda nn, n=name, k=kwargs: getattr(nn, n)(256, 16, **(k if n != "EGConv" else {"num_heads": 4})))


def molecules(name, make):
    """A model of atoms' kinds and places: make(torch_geometric.nn) builds it; it finds the edges by itself."""

    def build(size):
        import torch
        import torch_geometric.nn as nn

        n, atoms = (4, 12) if size.small else (64, 24)

        def loss_of(m, generator):
            kinds = torch.randint(1, 20, (n * atoms,), generator=generator)
            places, molecule = torch.randn(n * atoms, 3, generator=generator) * 2, torch.arange(n).repeat_interleave(atoms)
            return m(kinds.to(size.device), places.to(size.device), molecule.to(size.device)).square().mean()

        return make(nn), loss_of

    entry(f"PyG {name}", build)


def all_pairs(places, molecule):
    """Edges between all atoms of a molecule, and their lengths."""
    import torch

    a, b = torch.nonzero((molecule[:, None] == molecule[None]) & ~torch.eye(len(molecule), dtype=torch.bool, device=molecule.device), as_tuple=True)
    return torch.stack([a, b]), (places[a] - places[b]).norm(dim=-1)


molecules("SchNet", lambda nn: nn.SchNet(hidden_channels=128, num_filters=128, num_interactions=3, interaction_graph=all_pairs))
