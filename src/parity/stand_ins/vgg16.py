"""VGG16 as torchvision publishes it (vgg16-397923af.pth): bare tensors by its names, all sixteen layers, of 8 channels
where the real ones have 64 to 512 and 4096."""

from pathlib import Path

import torch

FILE, WIDTH, CLASSES = "vgg16-397923af.pth", 8, 1000


def write(folder: Path) -> dict[str, str]:
    """{"vgg16": a file}."""
    from torchvision.models.vgg import VGG, cfgs, make_layers

    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = VGG.__new__(VGG)
        torch.nn.Module.__init__(net)
        net.features = make_layers(["M" if layer == "M" else WIDTH for layer in cfgs["D"]])
        linear = {"0": (WIDTH * 7 * 7, WIDTH), "3": (WIDTH, WIDTH), "6": (WIDTH, CLASSES)}
        net.classifier = torch.nn.ModuleDict({name: torch.nn.Linear(*sizes) for name, sizes in linear.items()})
        for module in net.modules():
            if isinstance(module, torch.nn.Conv2d):  # so that features differ in the last layer too
                torch.nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    torch.save(net.state_dict(), folder / FILE)
    return {"vgg16": FILE}
