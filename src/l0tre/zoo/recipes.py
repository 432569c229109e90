"""How the networks of the zoo are trained."""

from dataclasses import dataclass

__all__ = ["KERAS", "MATLAB", "SDNN", "SDNN_UNPADDED", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """SGD with momentum on the cross entropy.

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


# Learning rate and weight decay were chosen on 5,000 of sdnn's training images held back from training, not on the test
# images. Only the numbers of epochs and of images per step are the paper's. Its weights are bundled as float32.
SDNN = Recipe(epochs=20, learning_rate=0.1, weight_decay=2e-3, one_cycle=True, keep_back_mnist5k=True, half=False)

# The same, on as many images as the paper has.
SDNN_UNPADDED = Recipe(epochs=20, learning_rate=0.1, weight_decay=2e-3, one_cycle=True, first=50_000)

# The paper's epochs, images per step and number of images; else what MATLAB's trainingOptions("sgdm") sets by default.
MATLAB = Recipe(epochs=30, learning_rate=0.01, weight_decay=1e-4, first=50_000)

# The paper's SGD(lr=0.01, decay=1e-6, momentum=0.9, nesterov=True) of Keras.
KERAS = Recipe(epochs=50, learning_rate=0.01, weight_decay=0.0, nesterov=True, decay=1e-6)
