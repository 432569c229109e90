"""How the networks of the zoo are trained."""

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "KERAS",
    "L2_ADVERSARIAL",
    "LINF_ADVERSARIAL",
    "MATLAB",
    "RESNET",
    "SDNN",
    "SDNN_UNPADDED",
    "TRADES",
    "Adversarial",
    "CrossEntropy",
    "Loss",
    "Recipe",
    "Trades",
]


@dataclass(frozen=True)
class CrossEntropy:
    """The mean cross entropy of the images as they are."""

    def __str__(self) -> str:
        return "cross entropy"


@dataclass(frozen=True)
class Adversarial:
    """The mean cross entropy at the worst points that projected gradient ascent finds around the images (Madry et al.).

    Attributes:
        norm: Of the ball around an image.
        radius: Of that ball, in the units of the input.
        step: Length of one step, in the same norm.
        steps: How many steps.
        warm_up: Over this first share of the training the radius and the step grow from 0.
    """

    norm: Literal["l2", "linf"]
    radius: float
    step: float
    steps: int
    warm_up: float = 0.3

    def __str__(self) -> str:
        return f"cross entropy at adversarial points ({self.norm}, radius {self.radius:g}, {self.steps} steps)"


@dataclass(frozen=True)
class Trades:
    """Cross entropy plus the divergence between the outputs at an image and near it (Zhang et al., L-infinity).

    Attributes:
        radius: Of the ball around an image, in the units of the input.
        step: Length of one step of the ascent on the divergence.
        steps: How many steps.
        weight: Of the divergence.
        warm_up: Over this first share of the training the radius and the step grow from 0.
    """

    radius: float
    step: float
    steps: int
    weight: float
    warm_up: float = 0.3

    def __str__(self) -> str:
        return f"TRADES (linf, radius {self.radius:g}, {self.steps} steps, weight {self.weight:g})"


Loss = CrossEntropy | Adversarial | Trades


@dataclass(frozen=True)
class Recipe:
    """SGD with momentum on a loss.

    Attributes:
        epochs: Passes over the training images.
        learning_rate: Learning rate of the first step; with ``one_cycle`` the highest one.
        weight_decay: L2 penalty on all parameters.
        batch_size: Images per step.
        momentum: Momentum of SGD.
        nesterov: Whether it is Nesterov's.
        one_cycle: Learning rate that rises for 30 % of the steps and then falls, instead of one that stays or decays.
        decay: Without ``one_cycle``, step ``k`` (from 0) has the learning rate ``learning_rate / (1 + decay * k)``.
        first: Train on so many images from the start of the training set; ``None`` for all.
        keep_back_mnist5k: Leave out the 5,000 MNIST training digits of ``mnist5k``, before ``first`` counts.
        half: Whether weights may be stored as float16.
        seed: Seed of the first weights, of the order of the images and of dropout.
        loss: What is made small.
        augment: Whether images are shifted by up to 4 pixels and mirrored left to right at random in every epoch.
    """

    epochs: int
    learning_rate: float
    weight_decay: float
    batch_size: int = 128
    momentum: float = 0.9
    nesterov: bool = False
    one_cycle: bool = False
    decay: float = 0.0
    first: int | None = None
    keep_back_mnist5k: bool = False
    half: bool = True
    seed: int = 0
    loss: Loss = CrossEntropy()
    augment: bool = False


# Learning rate and weight decay were chosen on 5,000 of sdnn's training images held back from training, not on the test
# images. Only the numbers of epochs and of images per step are the paper's. Its weights are bundled as float32.
SDNN = Recipe(epochs=20, learning_rate=0.1, weight_decay=2e-3, one_cycle=True, keep_back_mnist5k=True, half=False)

# The same, on as many images as the paper has.
SDNN_UNPADDED = Recipe(epochs=20, learning_rate=0.1, weight_decay=2e-3, one_cycle=True, first=50_000)

# The paper's epochs, images per step and number of images; else what MATLAB's trainingOptions("sgdm") sets by default.
MATLAB = Recipe(epochs=30, learning_rate=0.01, weight_decay=1e-4, first=50_000)

# The paper's SGD(lr=0.01, decay=1e-6, momentum=0.9, nesterov=True) of Keras.
KERAS = Recipe(epochs=50, learning_rate=0.01, weight_decay=0.0, nesterov=True, decay=1e-6)

# Robust twins of the attack networks: the radii are those customary for MNIST.
L2_ADVERSARIAL = Recipe(
    epochs=20,
    learning_rate=0.05,
    weight_decay=1e-4,
    batch_size=256,
    one_cycle=True,
    loss=Adversarial("l2", radius=2.0, step=0.5, steps=10),
)
LINF_ADVERSARIAL = Recipe(
    epochs=20,
    learning_rate=0.05,
    weight_decay=1e-4,
    batch_size=256,
    one_cycle=True,
    loss=Adversarial("linf", radius=0.3, step=0.05, steps=10, warm_up=0.5),
)
TRADES = Recipe(
    epochs=20,
    learning_rate=0.05,
    weight_decay=1e-4,
    batch_size=256,
    one_cycle=True,
    loss=Trades(radius=0.3, step=0.05, steps=10, weight=3.0),
)

# The residual network's customary settings with a shorter schedule; the other training images are left for tuning.
RESNET = Recipe(epochs=40, learning_rate=0.2, weight_decay=5e-4, one_cycle=True, first=40_000, augment=True)
