"""One published CNN run as its authors made it: CIFAR-10 at 86 x 86, random weights, fp32.

    python train_cnn.py MODEL OPTIMIZER BATCH ZERO_GRAD_MODE

ZERO_GRAD_MODE: 0 at the start of an iteration, 1 between forward and backward, 2 after the step.
"""

import sys

import torch
import torchvision

PIXELS = 86
ITERATIONS = 4
MODELS = {
    "VGG16": ("vgg16", 1000),
    "VGG19": ("vgg19", 1000),
    "ResNet101": ("resnet101", 1000),
    "ResNet152": ("resnet152", 1000),
    "MobileNetV2": ("mobilenet_v2", 1000),
    "MobeNetV3Small": ("mobilenet_v3_small", 10),
    "MobeNetV3Large": ("mobilenet_v3_large", 10),
    "MnasNet": ("mnasnet1_0", 10),
    "ConvNeXtTiny": ("convnext_tiny", 1000),
    "ConvNeXtBase": ("convnext_base", 1000),
    "RegNetX400MF": ("regnet_x_400mf", 1000),
    "RegNetY400MF": ("regnet_y_400mf", 1000),
}


def main():
    name, optimizer_name, batch, mode = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    build, classes = MODELS[name]
    model = getattr(torchvision.models, build)(num_classes=classes).to("cuda")
    model.train()
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-3)
    criterion = torch.nn.CrossEntropyLoss()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7)
    images = torch.empty(batch, 3, PIXELS, PIXELS)
    classes_of = torch.zeros(batch, dtype=torch.long)
    for _ in range(ITERATIONS):
        inputs, labels = images, classes_of
        if mode == 0:
            optimizer.zero_grad()
        inputs, labels = inputs.to("cuda"), labels.to("cuda")
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        if mode == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        _best, predicted = torch.max(outputs, 1)
        if mode == 2:
            optimizer.zero_grad()
        scheduler.step()


if __name__ == "__main__":
    main()
