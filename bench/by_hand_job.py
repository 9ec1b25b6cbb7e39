"""ResNet-152 that makes some of what backward needs again, instead of keeping it: options as of workloads.py.

    python3 bench/by_hand_job.py resnet152-again 20 --deterministic --on-device --no-fill

The model resnet152-again is resnet152 of workloads.py, computed by the same operations in the same order. What a ReLU
leaves is not saved for backward but made again from what its convolution left, by the kernels that made it: batch
norm's transform with the saved statistics, the addition of the shortcut, the ReLU in place. Of what a block leaves
at its end, which needs the shortcut, that is done for every other block, so that no chains come about. Nothing
else is changed: what is saved still, Penstock may move. Losses and parameters must be those of resnet152.
"""

import types

import torch
import workloads


class Recipe:
    """How a tensor is made again: a batch norm's transform, perhaps with a shortcut added, then a ReLU."""

    def __init__(self, norm, shortcut=None):
        self.norm, self.shortcut = norm, shortcut  # the shortcut: a tensor, or a Norm that is made again as well
        self.packed, self.made = 0, None

    def make(self):
        """The tensor, kept until all that saved it have taken it."""
        self.packed -= 1
        if self.made is None:
            with torch.no_grad(), torch.autocast("cuda", enabled=False):
                x = self.norm.make()
                if self.shortcut is not None:
                    x += self.shortcut.make() if isinstance(self.shortcut, Norm) else self.shortcut
                self.made = torch.relu_(x)
        made = self.made
        if not self.packed:
            self.made = None
        return made


class Norm:
    """What a batch norm's transform takes: all of it is saved by the batch norm itself, too."""

    def __init__(self, module, x, mean, invstd):
        self.module, self.x, self.mean, self.invstd = module, x.detach(), mean, invstd

    def make(self):
        m = self.module
        if self.x.is_cuda:
            return torch.batch_norm_elemt(self.x, m.weight, m.bias, self.mean, self.invstd, m.eps)
        return torch.native_batch_norm(self.x, m.weight, m.bias, None, None, True, 0.0, m.eps)[0]


recipes = {}  # address: of the tensors that are alive and have one


def pack(t):
    recipe = recipes.get(t.data_ptr())
    if recipe is None or t.shape != recipe.norm.x.shape:
        return t
    recipe.packed += 1
    return recipe


def unpack(saved):
    return saved.make() if isinstance(saved, Recipe) else saved


def normalised(module, x):
    """As module(x), with what makes it again."""
    module.num_batches_tracked.add_(1)
    y, mean, invstd = torch.native_batch_norm(x, module.weight, module.bias, module.running_mean, module.running_var, True, module.momentum, module.eps)
    return y, Norm(module, x, mean, invstd)


def rectified(x, recipe):
    """As relu_(x). Whoever saves it before forget saves how it is made."""
    if recipe:
        recipes[x.data_ptr()] = recipe
    return torch.relu_(x)


def forget(x):
    recipes.pop(x.data_ptr(), None)


def block_forward(block, x):
    """timm's Bottleneck. It is the last to see x, whose recipe it forgets."""
    shortcut = x
    y = block.conv1(x)
    for norm, conv in ((block.bn1, block.conv2), (block.bn2, block.conv3)):
        y, made = normalised(norm, y)
        z = rectified(y, Recipe(made))
        y = conv(z)
        forget(z)
    y, made = normalised(block.bn3, y)
    if block.downsample is not None:
        shortcut, again = normalised(block.downsample[1], block.downsample[0](x))
    else:
        again = shortcut.detach()
    y += shortcut
    forget(x)
    return rectified(y, Recipe(made, again) if block.makes_output else None)


def forward_features(model, x):
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y, made = normalised(model.bn1, model.conv1(x))
        z = rectified(y, Recipe(made))
        x = model.maxpool(z)
        forget(z)
        for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
            x = layer(x)
        forget(x)
        return x


def made_again(model):
    """The same model, computing in that way."""
    blocks = [b for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for b in layer]
    for i, block in enumerate(blocks):
        # The shortcut of one that is made again is there: that of the first of a layer is made, too.
        block.makes_output = block.downsample is not None or not blocks[i - 1].makes_output
        block.forward = types.MethodType(block_forward, block)
    blocks[-1].makes_output = False  # the pooling takes it at once
    model.forward_features = types.MethodType(forward_features, model)
    return model


def resnet152_again():
    return workloads.vision_model("resnet152", 128, made_again)


if __name__ == "__main__":
    workloads.MODELS["resnet152-again"] = resnet152_again
    workloads.main()
