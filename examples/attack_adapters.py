"""Use l0tre's attack through foolbox and through ART, as one of the attacks that they have.

Run: ``python examples/attack_adapters.py`` (needs the extras ``data``, ``zoo``, ``foolbox``, ``art``; works offline).
"""

import foolbox
from art.estimators.classification import PyTorchClassifier
from torch import Tensor, nn

import l0tre
from l0tre import zoo
from l0tre.adapters.art import L0TREAttack as ArtAttack
from l0tre.adapters.foolbox import L0TREAttack as FoolboxAttack
from l0tre.data import select

BUDGET = 500  # forward and backward passes for each image


def main() -> tuple[Tensor, Tensor]:
    """Attack three digits both ways and print how many pixels changed."""
    module = zoo.load("sdnn")
    digits = select(l0tre.load_data("mnist5k", input_shape=(1, 14, 14), resize=True), indices=[0, 1500, 3000])
    images, labels = digits.images, digits.labels
    assert labels is not None

    model = foolbox.PyTorchModel(module, bounds=(0, 1), device="cpu")
    # Foolbox cannot clip to an L0 distance: epsilons=None.
    _, by_foolbox, success = FoolboxAttack(budget=BUDGET)(model, images, labels, epsilons=None)
    pixels = (by_foolbox != images).flatten(1).sum(1)
    print(f"foolbox: {pixels.tolist()} pixels, {int(success.sum())} of {len(images)} found")

    classifier = PyTorchClassifier(
        module,
        loss=nn.CrossEntropyLoss(),
        input_shape=(1, 14, 14),
        nb_classes=10,
        clip_values=(0, 1),
        device_type="cpu",
    )
    by_art = images.new_tensor(ArtAttack(classifier, budget=BUDGET).generate(images.numpy(), labels.numpy()))
    pixels = (by_art != images).flatten(1).sum(1)
    decisions = classifier.predict(by_art.numpy()).argmax(1)
    print(f"ART:     {pixels.tolist()} pixels, {labels.tolist()} become {decisions.tolist()}")
    return by_foolbox, by_art


if __name__ == "__main__":
    main()
