"""Inception as torch-fidelity publishes it (pt_inception-2015-12-05-6726825d.pth): a pickle of tensors. Its layout has
one size, so this random one is as large as the real file, 95 MB."""

from pathlib import Path

import torch

FILE = "pt_inception-2015-12-05-6726825d.pth"


def write(folder: Path) -> dict[str, str]:
    """{"inception": a file}."""
    from torch_fidelity import feature_extractor_inceptionv3 as published

    folder.mkdir(parents=True, exist_ok=True)
    blocks = published.FeatureExtractorInceptionV3.__new__(published.FeatureExtractorInceptionV3)
    torch.nn.Module.__init__(blocks)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, made in layers(published).items():
            setattr(blocks, name, made)
        for module in blocks.modules():
            if isinstance(module, torch.nn.Conv2d):  # so that features differ in the last layer too
                torch.nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    torch.save(blocks.state_dict(), folder / FILE)
    return {"inception": FILE}


def layers(published) -> dict[str, torch.nn.Module]:
    """Those that have parameters, by the names and with the sizes of the published file."""
    conv = published.BasicConv2d
    return {
        "Conv2d_1a_3x3": conv(3, 32, kernel_size=3, stride=2),
        "Conv2d_2a_3x3": conv(32, 32, kernel_size=3),
        "Conv2d_2b_3x3": conv(32, 64, kernel_size=3, padding=1),
        "Conv2d_3b_1x1": conv(64, 80, kernel_size=1),
        "Conv2d_4a_3x3": conv(80, 192, kernel_size=3),
        "Mixed_5b": published.InceptionA(192, pool_features=32),
        "Mixed_5c": published.InceptionA(256, pool_features=64),
        "Mixed_5d": published.InceptionA(288, pool_features=64),
        "Mixed_6a": published.InceptionB(288),
        "Mixed_6b": published.InceptionC(768, channels_7x7=128),
        "Mixed_6c": published.InceptionC(768, channels_7x7=160),
        "Mixed_6d": published.InceptionC(768, channels_7x7=160),
        "Mixed_6e": published.InceptionC(768, channels_7x7=192),
        "Mixed_7a": published.InceptionD(768),
        "Mixed_7b": published.InceptionE_1(1280),
        "Mixed_7c": published.InceptionE_2(2048),
        "fc": torch.nn.Linear(2048, 1008),
    }
